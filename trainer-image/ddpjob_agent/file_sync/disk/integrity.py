"""Detects incomplete files of a script's state by the structure of their formats.

Known formats are zip (torch.save, npz), pickle and safetensors. A file of another format, as of
torch.save before 1.6, passes if it is not empty. An empty file passes if its name is that of a
marker such as _SUCCESS: a writer of data that was killed early leaves an empty file, too. Known
directories are those of Hugging Face's Trainer.
A killed writer leaves the beginning of a file; in each known format the end reveals this.
Executes no code from the file. May not: write, wait, or know the purpose of the file.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from ddpjob_agent.file_sync.decisions.pickle_scan import find_damage
from ddpjob_protocol.codec import show
from ddpjob_protocol.text import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable

ZIP = b"PK\x03\x04"  # start of the first entry
ENTRY_BYTES = 30  # header of an entry, before its name
UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take the memory that a file asks for
SAFETENSORS = ".safetensors"
OFFSETS = re.compile(
    rb'"data_offsets"\s{0,9}:\s{0,9}\[\s{0,9}[0-9]{1,19}\s{0,9},\s{0,9}([0-9]{1,19})\s{0,9}\]'
)
MAX_OFFSETS_BYTES = 128  # of one match
MAX_HEADER_BYTES = 100_000_000  # limit in the definition of safetensors
OLD_TORCH = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9"  # torch.save before 1.6: pickles, then tensors
# checkpoint-STEP is a directory of Hugging Face's Trainer. Each one has some of these files; the
# Trainer writes TRAINERS_LAST last. On disks that are not shared, the directory of a worker
# without rank 0 has only the states of random generators.
TRAINERS_FOLDER = re.compile(r"checkpoint-\d{1,99}")
TRAINERS_FILES = re.compile(
    r"training_args\.bin|optimizer\.pt|scheduler\.pt|rng_state(_\d{1,99})?\.pth"
)
TRAINERS_LAST = "trainer_state.json"
# Names of empty files that programs create after a checkpoint (`_SUCCESS`, `step-5.done`), and of logs.
MARKER_WORD = "success|done|complete|completed|commit|committed|finished|ready|ok|marker|lock|keep"
MARKER = re.compile(
    r"_[A-Z][A-Z0-9_]{0,255}|.{1,255}\.(log|out|err)|__init__\.py"
    rf"|(?i:(.{{1,255}}[-_.])?({MARKER_WORD})([-_.]\d{{1,99}})?)"
)
DEEP_BYTES = 64 << 20  # limit for reading all content, too; takes a tenth of a second
PICKLE_BYTES = 8 << 20  # the same limit for pickles: read instruction by instruction, in a second
JSON_BYTES = 4 << 20  # the same limit for JSON, whose objects take many times its bytes
MAX_REASON = 500  # characters

# Limits of the entries that are unpacked: a small archive may have many that share their bytes.
UNPACKED_BYTES = 256 << 20
UNPACKED_ENTRIES = 100_000

# Exceptions of the standard library for invalid archives.
_BAD = (ArithmeticError, EOFError, LookupError, NotImplementedError, RuntimeError, ValueError)


def find_corruption(file: IO[bytes], size: int, name: str) -> str:
    """Return the corruption of a file of this size and name, or an empty text. Raises OSError."""
    return excerpt(_find_corruption(file, size, name), MAX_REASON)


def _find_corruption(file: IO[bytes], size: int, name: str) -> str:
    if size == 0:
        return "" if MARKER.fullmatch(os.path.basename(name)) else "it is empty"
    file.seek(0)
    head = file.read(9)
    if head.startswith(ZIP) or (size < len(ZIP) and ZIP.startswith(head)):
        return _find_zip_corruption(file, size)
    if name.endswith(SAFETENSORS) or _is_safetensors(head):
        return _find_safetensors_corruption(file, size, head)
    if head.startswith(b"\x80") and (size == 1 or head[1] in (2, 3, 4, 5)):
        return "" if head == OLD_TORCH else _find_pickle_corruption(file, size)
    if os.path.basename(name) == TRAINERS_LAST:
        return _find_json_corruption(file, size)
    return ""


def find_folder_corruption(names: Iterable[str]) -> str:
    """Return the first Trainer directory that lacks its last file, or an empty text."""
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
    """Check that the directory ends the archive, and that all entries lie before the directory."""
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
    # A checksum of 0: torch was configured to write none.
    checked = [e for e in entries if e.CRC != 0 and e.compress_type in UNPACKED]
    size = sum(entry.file_size for entry in checked)
    if size > UNPACKED_BYTES or len(checked) > UNPACKED_ENTRIES:
        return ""
    for entry in checked:
        try:
            with archive.open(entry) as content:
                while content.read(1 << 20):
                    pass
        except (zipfile.BadZipFile, zlib.error, *_BAD) as error:
            return f"entry {entry.filename} is damaged: {error}"
    return ""


def _find_pickle_corruption(file: IO[bytes], size: int) -> str:
    """Check that the last of the file's pickles ends with it."""
    file.seek(size - 1)
    if file.read(1) != pickle.STOP:
        return "its last pickle is cut short"
    if size > PICKLE_BYTES:
        return ""
    file.seek(0)
    damage = find_damage(file.read(size))
    return damage and f"its pickle cannot be read: {damage}"


def _find_json_corruption(file: IO[bytes], size: int) -> str:
    if size > JSON_BYTES:
        file.seek(-1, os.SEEK_END)
        return "" if file.read(1) in b"}]\n" else "it is cut short"
    file.seek(0)
    try:
        json.loads(file.read(size))
    except (ValueError, RecursionError) as error:
        return f"it cannot be read: {error}"
    return ""


def _is_safetensors(head: bytes) -> bool:
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER_BYTES


def _find_safetensors_corruption(file: IO[bytes], size: int, head: bytes) -> str:
    """Check that the file ends where the last tensor of its header ends."""
    if size < 9:
        return "its header is cut short"
    (length,) = struct.unpack("<Q", head[:8])
    if length > min(size - 8, MAX_HEADER_BYTES):
        return "its header is cut short"
    file.seek(8)
    try:
        find_end = _search_end if length > JSON_BYTES else _parse_end
        expected = 8 + length + find_end(file, length)
    except (AttributeError, TypeError, *_BAD) as error:
        return f"its header cannot be read: {error}"
    return "" if size == expected else f"it has {size} of {show(expected)} bytes"


def _parse_end(file: IO[bytes], length: int) -> int:
    """Return where the last tensor of a header ends, after the header."""
    header: dict[str, Any] = json.loads(file.read(length))
    ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
    return max(ends, default=0)


def _search_end(file: IO[bytes], length: int) -> int:
    """Return the same for a long header, without an object for each tensor."""
    end, before = 0, b""
    while length > 0 and (data := file.read(min(length, 1 << 20))):
        length -= len(data)
        found = (int(match[1]) for match in OFFSETS.finditer(before + data))
        end, before = max(end, *found, 0), data[-MAX_OFFSETS_BYTES:]
    return end
