"""Shortens what a stop or a lost worker makes torchrun and its processes print.

A traceback of torchrun that was stopped, and that of a process whose peer ended, become one
line. `TracebackFilter` is for the screen of a local run, and also shows a repeated traceback once.
`LogFold` is for the log of a pod: the streams of all ranks in one.
May not: read a clock, know workers.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

from ddpjob_protocol.failures.peer_errors import SECONDARY
from ddpjob_protocol.messages.membership import Cause
from ddpjob_protocol.text import shorten

MAX_KNOWN = 100  # tracebacks
MAX_LINES = 1000  # of one traceback
RECENT_LINES = 5000  # of stderr, to recognize a traceback
TABLE_RULES = 2  # lines of ==== around the table of a ChildFailedError
MAX_ERROR = 160  # characters
FOLDED = "traceback folded; --raw shows it"
LEAVING = "received SIGTERM: leaving"  # of the agent
_HEAD = re.compile(r"(\[rank\d+\]: ?)?Traceback \(most recent call last\):")
_RANK = re.compile(r"^\[rank\d+\]: ?")
_AGENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ddpjob\.agent ")
_MEMBERSHIP = re.compile(r" ddpjob\.agent membership (?P<id>\S+) \((?P<cause>\w+)\): ")
_CHAIN = re.compile(r"(During handling of|The above exception was the direct cause of)")
_DETAIL = re.compile(r"(During handling of|The above exception was|Exception raised from |frame #)")


class TracebackFilter:
    """The tracebacks of one run; `StreamTracebacks` collects those of one stream."""

    def __init__(self) -> None:
        self._known: collections.deque[tuple[str, ...]] = collections.deque(maxlen=MAX_KNOWN)
        self._recent: collections.deque[str] = collections.deque(maxlen=RECENT_LINES)

    def show(self, block: Sequence[str]) -> list[str]:
        """Return the lines to show for one traceback with its message."""
        key = tuple(_bare(line) for line in block)
        error = next((line for line in key[1:] if line and not line.startswith(" ")), "")
        if of_torchrun := _of_torchrun(error, "in the log"):
            return [of_torchrun]
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


class _Block:
    """The traceback of one rank in the log of a pod."""

    def __init__(self, head: str, *, is_mixed: bool) -> None:
        self.lines = [head]
        self.error = ""  # the message of its last exception
        self.is_mixed = is_mixed  # with the lines of another process: it is never folded
        self._message: list[str] = []  # the lines from the error on
        self._rules = 0  # lines in the table of a ChildFailedError

    @property
    def is_secondary(self) -> bool:
        """True if the exception reports that another process ended."""
        return SECONDARY.search("\n".join(self._message)) is not None

    def continues(self, line: str) -> bool:
        """Add a line and return True if it belongs to the traceback."""
        bare = _bare(line)
        if self.error and not self._has_more(bare):
            return False
        if _HEAD.match(line):  # the next exception of a chain
            self.error, self._message = "", []
        elif self.error or (bare and not bare.startswith(" ")):
            self.error = self.error or bare
            self._message.append(bare)
        self._rules += bare.startswith("====")
        self.lines.append(line)
        return len(self.lines) < MAX_LINES

    def _has_more(self, bare: str) -> bool:
        if "ChildFailedError" in self.error and self._rules < TABLE_RULES:
            return True
        is_chained = any(_CHAIN.match(line) for line in self._message)
        return not bare or bare.startswith(" ") or bool(is_chained or _DETAIL.match(bare))


class LogFold:
    """The log of one pod, line by line, with folded tracebacks.

    An agent writes which membership begins, and why. If a failure is the reason, or the log ends,
    the tracebacks that were folded on suspicion are shown after all, unless another one was shown.
    """

    def __init__(self, failed: set[str]) -> None:
        """`failed` has the memberships of which a whole traceback was shown, for all pods."""
        self._failed = failed
        self._membership = ""
        self._open: dict[str, _Block] = {}  # by the prefix of torch, which names the rank
        self._suspects: list[_Block] = []  # of the membership that ends
        self._is_leaving = False

    def feed(self, line: str) -> list[str]:
        """Return the lines to show now."""
        if _AGENT.match(line):
            return [*self.flush(), *self._follow(line), line]
        rank, is_head = self._rank_of(line), _HEAD.match(line) is not None
        block = self._open.get(rank)
        if block is not None and not (is_head and not block.error) and block.continues(line):
            return []
        ended = [each for each, other in self._open.items() if each == rank or other.error]
        shown = [text for each in ended for text in self._close(each)]
        if not is_head:
            return [*shown, line]
        self._open[rank] = _Block(line, is_mixed=block is not None and not block.error)
        return shown

    def _rank_of(self, line: str) -> str:
        """Return torch's prefix of a line; it leaves blank lines of a traceback without one."""
        if not line.strip() and self._open:
            return [*self._open][-1]
        match = _RANK.match(line)
        return match[0] if match else ""

    def flush(self) -> list[str]:
        """Return the lines of tracebacks that may not be complete."""
        return [line for rank in [*self._open] for line in self._close(rank)]

    def end(self) -> list[str]:
        """Return the rest, because the log has ended."""
        return [*self.flush(), *([] if self._is_leaving else self._release())]

    def _follow(self, line: str) -> list[str]:
        """Return the tracebacks that the reason of the next membership makes interesting."""
        self._is_leaving |= LEAVING in line
        found = _MEMBERSHIP.search(line)
        if found is None:
            return []
        shown = self._release() if found["cause"] == Cause.FAILED else []
        self._suspects, self._membership = [], found["id"]
        return shown

    def _close(self, rank: str) -> list[str]:
        block = self._open.pop(rank)
        if not block.is_mixed:
            if of_torchrun := _of_torchrun(block.error, "folded; --raw shows it"):
                return [of_torchrun]
            if block.is_secondary:
                self._suspects.append(block)
                return [f"{rank}{shorten(block.error, MAX_ERROR)} ({FOLDED})"]
        self._failed.add(self._membership)
        return block.lines

    def _release(self) -> list[str]:
        blocks, self._suspects = self._suspects, []
        if self._membership in self._failed:
            return []
        return [line for block in blocks for line in block.lines]


def _of_torchrun(error: str, where: str) -> str:
    """Return the line for an exception with which torchrun ends, or an empty text."""
    if "ChildFailedError" in error:
        return f"torchrun: ChildFailedError (table of failures {where})"
    if "SignalException" in error:
        return f"torchrun: stopped by a signal (traceback {where})"
    return ""


def _bare(line: str) -> str:
    """Return a line without torch's prefix and without space at its end."""
    return _RANK.sub("", line).rstrip()
