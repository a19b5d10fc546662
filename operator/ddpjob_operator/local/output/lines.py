"""Splits the bytes of one stream into lines for a screen.

May not: decide which lines are shown, read a clock.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE_BYTES = 8192  # a longer line is cut
_COLOUR = rb"\x1b\[[0-9;:]*m"
# Control sequences other than colours, and control characters other than tabs.
_CONTROL = re.compile(
    rb"(?P<keep>" + _COLOUR + rb")"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]"
)


class Line(NamedTuple):
    """A line without its end; it may contain colours, and no other control sequence."""

    text: str
    is_update: bool = False  # a progress bar will overwrite this line


class LineSplitter:
    """The lines of one stream."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that these bytes complete, and the newest state of a progress bar."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = [Line(part) for line in whole for part in _cut(_last_state(line))]
        if b"\r" in self._rest.rstrip(b"\r"):
            self._rest = b"\r" + _last_state(self._rest)
            found.append(Line(_decode(self._rest), is_update=True))
        while len(self._rest) > MAX_LINE_BYTES:
            first, *_ = _cut_bytes(self._rest)
            self._rest = self._rest[len(first) :]
            found.append(Line(_decode(first)))
        return found

    def end(self) -> list[Line]:
        """Return the rest, which has no end of line."""
        rest, self._rest = _last_state(self._rest), b""
        return [Line(part) for part in _cut(rest)] if rest else []


def _last_state(line: bytes) -> bytes:
    """Return what a terminal shows of a line with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _cut(line: bytes) -> list[str]:
    return [_decode(part) for part in _cut_bytes(line)] or [""]


def _cut_bytes(line: bytes) -> list[bytes]:
    """Cut a line into parts of limited length, between characters."""
    parts = []
    while line:
        end = min(MAX_LINE_BYTES, len(line))
        while end > 1 and end < len(line) and line[end] & 0xC0 == 0x80:
            end -= 1
        parts.append(line[:end])
        line = line[end:]
    return parts


def _decode(line: bytes) -> str:
    return _CONTROL.sub(lambda found: found["keep"] or b"", line).decode(errors="replace")
