"""Whether a file that a script writes its state to is whole, by the structure of its format.

Known are zip (torch.save, npz), pickle (also torch.save as it was before 1.6) and safetensors.
Anything else is whole if it is not empty: no more can be said of it. Of directories only those of
Hugging Face's Trainer are known. A writer that was killed
leaves the beginning of a file; each of the formats shows that at its end.
Executes nothing of what it reads. May not: write, wait, or know what the file is for.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from ddpjob_agent.file_sync.pickle_check import find_pickle_corruption

if TYPE_CHECKING:
    from collections.abc import Iterable

ZIP = b"PK\x03\x04"  # of the first entry
ENTRY_BYTES = 30  # before its name
EMPTY_ZIP = b"PK\x05\x06"
SAFETENSORS = ".safetensors"
MAX_HEADER_BYTES = 100_000_000  # of safetensors, by its own definition
# Of checkpoint-STEP, a directory of Hugging Face's Trainer: what it always has, and what comes last.
# With disks of their own, workers without rank 0 have but random numbers in theirs.
TRAINERS_FOLDER = re.compile(r"checkpoint-\d+")
TRAINERS_FILES = re.compile(r"training_args\.bin|optimizer\.pt|scheduler\.pt|rng_state(_\d+)?\.pth")
TRAINERS_LAST = "trainer_state.json"
DEEP_BYTES = 64 << 20  # to this size all content is looked at, too: it takes a tenth of a second

# What the standard library raises for archives that are none.
_BAD = (ArithmeticError, EOFError, LookupError, NotImplementedError, RuntimeError, ValueError)


def find_corruption(file: IO[bytes], size: int, name: str) -> str:
    """What is wrong with a file of this size and name; empty when nothing is. Raises OSError."""
    if size == 0:
        return "it is empty"
    file.seek(0)
    head = file.read(9)
    if head.startswith(ZIP) or (size < len(ZIP) and ZIP.startswith(head)):
        return _find_zip_corruption(file, size)
    if name.endswith(SAFETENSORS) or _is_safetensors(head):
        return _find_safetensors_corruption(file, size, head)
    if head.startswith(b"\x80") and (size == 1 or head[1] in (2, 3, 4, 5)):
        return find_pickle_corruption(file, size, deep=size <= DEEP_BYTES)
    if os.path.basename(name) == TRAINERS_LAST:
        return _find_json_corruption(file)
    return ""


def find_folder_corruption(names: Iterable[str]) -> str:
    """Which directory of all these files lacks one of them, and which; empty when none does."""
    found: dict[str, set[str]] = {}
    for folder, name in map(os.path.split, names):
        if TRAINERS_FOLDER.fullmatch(os.path.basename(folder)):
            found.setdefault(folder, set()).add(name)
    for folder, inside in sorted(found.items()):
        if TRAINERS_LAST not in inside and any(map(TRAINERS_FILES.fullmatch, inside)):
            return (
                f"{folder} is not whole: it has no {TRAINERS_LAST}, which the Trainer writes last"
            )
    return ""


def _find_zip_corruption(file: IO[bytes], size: int) -> str:
    """The directory is the last thing in an archive; all it names must lie before it."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if not entries or min(entry.header_offset for entry in entries) != 0:
                return "its directory of entries is that of another archive within it"
            for entry in entries:
                end = entry.header_offset + ENTRY_BYTES + entry.compress_size
                if end > archive.start_dir:
                    return f"entry {entry.filename} is cut short"
            return _find_entry_corruption(archive, entries) if size <= DEEP_BYTES else ""
    except (zipfile.BadZipFile, struct.error, OSError, *_BAD) as error:
        return f"its directory of entries is missing: {error}"


def _find_entry_corruption(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> str:
    for entry in entries:
        if entry.CRC == 0:  # torch was told to write none
            continue
        try:
            with archive.open(entry) as content:
                while content.read(1 << 20):
                    pass
        except (zipfile.BadZipFile, zlib.error, *_BAD) as error:
            return f"entry {entry.filename} is damaged: {error}"
    return ""


def _find_json_corruption(file: IO[bytes]) -> str:
    file.seek(0)
    try:
        json.load(file)
    except ValueError as error:
        return f"it cannot be read: {error}"
    return ""


def _is_safetensors(head: bytes) -> bool:
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES


def _find_safetensors_corruption(file: IO[bytes], size: int, head: bytes) -> str:
    """The header says where each tensor ends; the last of these ends is that of the file."""
    if size < 9:
        return "its header is cut short"
    (length,) = struct.unpack("<Q", head[:8])
    if length > min(size - 8, MAX_HEADER_BYTES):
        return "its header is cut short"
    file.seek(8)
    try:
        header: dict[str, Any] = json.loads(file.read(length))
        ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        return f"its header cannot be read: {error}"
    return "" if size == expected else f"it has {size} of {expected} bytes"
