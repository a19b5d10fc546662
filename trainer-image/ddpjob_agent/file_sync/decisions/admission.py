"""Admits the list of files of a replica that comes from outside: from a worker, or from a volume.

A replica may change only the files that this agent's own `snapshot.files` names. So each name must
be one that an entry matches, and no number of the list is trusted before it is checked.
May not: read a clock, do I/O.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.decisions.replica import FileEntry, Parts

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FILES = 65_536
MAX_BYTES = 1 << 50  # of all files of a replica
MAX_NAME_BYTES = 4095  # limit of Linux for a path
MAX_DEPTH = 128  # folders in a name
PERMISSIONS = 0o777  # without setuid, setgid and sticky
_DIGEST = re.compile(r"[0-9a-f]{32}")
_MAGIC = re.compile(r"[*?[]")

_Path = tuple[str, ...]  # the parts of a name


class MalformedError(ValueError):
    """The list is not a list of files: another holder may send a correct one."""


class RefusedError(Exception):
    """The list names or announces what a replica may not have: every holder would send the same."""


def parse_parts(listed: object) -> Parts:
    """Return the files of a list from JSON, with permissions only; raise MalformedError."""
    if not isinstance(listed, list) or len(listed) > MAX_FILES:
        raise MalformedError(f"it sent no list of at most {MAX_FILES} files")
    for each in listed:
        if not isinstance(each, list) or [*map(type, each)] != [str, int, str, int]:
            raise MalformedError("it sent a list with an entry that is not a file")
    parts = (FileEntry(*each) for each in listed)
    return tuple(part._replace(mode=part.mode & PERMISSIONS) for part in parts)


def admit(parts: Parts, entries: Sequence[str]) -> None:
    """Raise RefusedError unless these files are files of `entries`, with possible sizes."""
    own = [_split(posixpath.normpath(entry)) for entry in entries]
    for part in parts:
        if _escapes(part.name) or not any(_is_named(_split(part.name), entry) for entry in own):
            raise RefusedError(f"{_quote(part.name)} is not a file of snapshot.files")
        if part.size < 0 or not _DIGEST.fullmatch(part.digest):
            raise RefusedError(f"the size or the digest of {_quote(part.name)} is impossible")
    if sum(part.size for part in parts) > MAX_BYTES:
        raise RefusedError(f"its files have more than {MAX_BYTES} bytes")
    names = sorted(_split(part.name) for part in parts)
    for one, following in zip(names, names[1:]):
        if following[: len(one)] == one:
            raise RefusedError(
                f"{_quote('/'.join(one[1:]))} is there twice, or a file and a folder"
            )


def _escapes(name: str) -> bool:
    """Return whether a name is not normal, leaves its folder, or is not a name on Linux."""
    try:
        encoded = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return True
    return (
        posixpath.normpath(name) != name
        or name.startswith("//")
        or len(encoded) > MAX_NAME_BYTES
        or b"\0" in encoded
        or name.count("/") > MAX_DEPTH
        or ".." in name.split("/")
    )


def _split(name: str) -> _Path:
    """Return the folder that a normal name starts from, and the parts of the name."""
    start = "/" if name.startswith("/") else "."
    return (start, *(part for part in name.split("/") if part not in ("", ".")))


def _is_named(name: _Path, entry: _Path) -> bool:
    """Return whether an entry names a file: itself, in its directory, or by its pattern."""
    if name == entry:
        return len(entry) > 1
    if name[: len(entry)] == entry:
        return all(map(_is_visible, name[len(entry) :]))
    return any(map(_MAGIC.search, entry)) and _matches(name, entry)


def _matches(name: _Path, pattern: _Path) -> bool:
    """Return whether a pattern matches a file or a directory above it, as `glob` matches it."""
    whole, reached = len(pattern), _skip({0}, pattern)
    for number, part in enumerate(name):
        if whole in reached and all(map(_is_visible, name[number:])):
            return True
        reached = _skip({at for each in reached for at in _step(each, part, pattern)}, pattern)
    return whole in reached


def _step(at: int, part: str, pattern: _Path) -> set[int]:
    """Return the positions in the pattern after one more part of the name."""
    if at == len(pattern):
        return set()
    if pattern[at] == "**":
        return {at} if _is_visible(part) else set()
    return {at + 1} if _matches_part(part, pattern[at]) else set()


def _skip(reached: set[int], pattern: _Path) -> set[int]:
    """Add the positions after each `**`, which also matches no folder."""
    for at in range(len(pattern)):
        if at in reached and pattern[at] == "**":
            reached.add(at + 1)
    return reached


def _matches_part(part: str, pattern: str) -> bool:
    if not _MAGIC.search(pattern):
        return part == pattern
    return fnmatch.fnmatchcase(part, pattern) and (_is_visible(part) or not _is_visible(pattern))


def _is_visible(part: str) -> bool:
    return not part.startswith(".")


def _quote(name: str) -> str:
    return ascii(name if len(name) <= 100 else f"{name[:100]}…")
