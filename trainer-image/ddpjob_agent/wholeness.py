"""Whether a file that a script writes its state to is whole, by the structure of its format.

Known are zip (torch.save, npz), pickle (also torch.save as it was before 1.6) and safetensors.
Anything else is whole if it is not empty: no more can be said of it. A writer that was killed
leaves the beginning of a file; each of the formats shows that at its end.
Executes nothing of what it reads. May not: write, wait, or know what the file is for.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from typing import IO, Any

from .old_pickle import damage_of_pickle

ZIP = b"PK\x03\x04"  # of the first entry
ENTRY_BYTES = 30  # before its name
EMPTY_ZIP = b"PK\x05\x06"
SAFETENSORS = ".safetensors"
MAX_HEADER_BYTES = 100_000_000  # of safetensors, by its own definition
DEEP_BYTES = 64 << 20  # to this size all content is looked at, too: it takes a tenth of a second

# What the standard library raises for archives that are none.
_BAD = (ArithmeticError, EOFError, LookupError, NotImplementedError, RuntimeError, ValueError)


def damage_of(file: IO[bytes], size: int, name: str) -> str:
    """What is wrong with a file of this size and name; empty when nothing is. Raises OSError."""
    if size == 0:
        return "it is empty"
    file.seek(0)
    head = file.read(9)
    if head.startswith(ZIP) or (size < len(ZIP) and ZIP.startswith(head)):
        return _damage_of_zip(file, size)
    if name.endswith(SAFETENSORS) or _begins_as_safetensors(head):
        return _damage_of_safetensors(file, size, head)
    if head.startswith(b"\x80") and (size == 1 or head[1] in (2, 3, 4, 5)):
        return damage_of_pickle(file, size, deep=size <= DEEP_BYTES)
    return ""


def _damage_of_zip(file: IO[bytes], size: int) -> str:
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
            return _damage_of_entries(archive, entries) if size <= DEEP_BYTES else ""
    except (zipfile.BadZipFile, struct.error, OSError, *_BAD) as error:
        return f"its directory of entries is missing: {error}"


def _damage_of_entries(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> str:
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


def _begins_as_safetensors(head: bytes) -> bool:
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES


def _damage_of_safetensors(file: IO[bytes], size: int, head: bytes) -> str:
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
