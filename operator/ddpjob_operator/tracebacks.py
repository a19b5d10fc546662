"""Shows each traceback once, although many ranks and restarts print it.

A repeated traceback, and that of a process whose peer ended, become one line.
May not: read a clock, know workers.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from ddpjob_protocol.failures.peer_errors import SECONDARY

MAX_KNOWN = 100  # tracebacks
MAX_LINES = 1000  # of one traceback
RECENT_LINES = 5000  # of stderr, to recognize a traceback
_HEAD = re.compile(r"(\[rank\d+\]: ?)?Traceback \(most recent call last\):")
_RANK = re.compile(r"^\[rank\d+\]: ?")


class TracebackFilter:
    """The tracebacks of one run; `StreamTracebacks` collects those of one stream."""

    def __init__(self) -> None:
        self._known: collections.deque[tuple[str, ...]] = collections.deque(maxlen=MAX_KNOWN)
        self._recent: collections.deque[str] = collections.deque(maxlen=RECENT_LINES)

    def show(self, block: Sequence[str]) -> list[str]:
        """Return the lines to show for one traceback with its message."""
        key = tuple(_bare(line) for line in block)
        error = next((line for line in key[1:] if line and not line.startswith(" ")), "")
        if "ChildFailedError" in error:
            return ["torchrun: ChildFailedError (table of failures in the log)"]
        if SECONDARY.search("\n".join(key)):
            kind = error.partition(":")[0]
            return [f"{kind} because another process ended (traceback in the log)"]
        if key in self._known:
            return [f"{error} (the same traceback as above)"]
        self._known.append(key)
        return self.note(block)

    def note(self, lines: Iterable[str]) -> list[str]:
        """Remember lines of stderr that are shown, and return them."""
        shown = list(lines)
        self._recent.extend(_bare(line) for line in shown)
        return shown

    def has_shown(self, traceback: str) -> bool:
        """Return whether all lines of a traceback have been shown."""
        recent = set(self._recent)
        return all(_bare(line) in recent for line in traceback.splitlines() if line.strip())


class StreamTracebacks:
    """The traceback that one stream prints now."""

    def __init__(self, seen: TracebackFilter) -> None:
        self._seen = seen
        self._block: list[str] = []
        self._has_error = False

    def feed(self, lines: Iterable[str]) -> list[str]:
        """Return the lines to show; hold a traceback back until its error is printed."""
        found: list[str] = []
        for line in lines:
            if _HEAD.match(line):
                found += self.end()
                self._block = [line]
            elif self._block and len(self._block) < MAX_LINES:
                self._block.append(line)
                bare = _bare(line)
                self._has_error |= bool(bare) and not bare.startswith(" ")
            else:
                found += self.end() + self._seen.note([line])
        return found + (self.end() if self._has_error else [])

    def end(self) -> list[str]:
        """Return the lines of a traceback that is held back."""
        block, self._block, self._has_error = self._block, [], False
        return self._seen.show(block) if block else []


def _bare(line: str) -> str:
    """Return a line without torch's prefix and without space at its end."""
    return _RANK.sub("", line).rstrip()
