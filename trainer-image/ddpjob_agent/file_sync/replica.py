"""Copies of the files that a script saves its state to: how they are ordered, and what is said of them.

A copy is of the membership under which its last write was complete, so many seconds after that
began on the clock of whoever saw it. No clock is compared between machines: a copy of a later
membership is newer, whatever the time, and a membership counts what it began from as its own.

May not: read a clock, open anything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEFORE_ALL = "0.0.0"  # of files that nobody saw written
NOTHING = ""  # the digest of no files at all


class FileEntry(NamedTuple):
    """One file of a copy."""

    name: str  # as the job names it: below the working directory, or absolute
    size: int
    digest: str
    mode: int


def digest_of(parts: Sequence[FileEntry]) -> str:
    """What tells one content from another: all names and bytes."""
    if not parts:
        return NOTHING
    facts = json.dumps([part[:3] for part in parts]).encode()
    return hashlib.blake2b(facts, digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True)
class Replica:
    """All files of a job at one time, whole."""

    membership: str
    seconds: float
    digest: str
    size: int  # bytes

    def __str__(self) -> str:
        return f"the copy of {self.seconds:.0f} s into membership {self.membership}"

    @property
    def order(self) -> tuple[MembershipId, float, str]:
        """Orders copies, the newest last; the digest only lets all come to the same."""
        return MembershipId.parse(self.membership), self.seconds, self.digest


def newest(copies: Iterable[Replica]) -> Replica | None:
    """The one to go on from."""
    return max(copies, key=lambda copy: copy.order, default=None)


@dataclasses.dataclass(frozen=True)
class FileInventory:
    """What an agent says that it has, in answer to the last word."""

    scope: str  # of that word
    copies: tuple[Replica, ...] = ()
    here: str | None = None  # digest of what lies in the script's place; None: it is not whole
    begun: bool = False  # the processes of this scope have been started from it
    port: int = 0  # where others get copies from
    problem: str = ""  # why a copy could not be kept

    def has(self, digest: str) -> bool:
        """Whether it can give this one to others."""
        return any(copy.digest == digest for copy in self.copies)


@dataclasses.dataclass(frozen=True)
class FileInstruction:
    """What the service says to one agent about the files.

    scope: told again what is there, once nothing runs: the service decides from that.
    put: put the copy in place, or clear that if there is none, and tell; then go: start.
    keep: get the copy for others' sake.
    wait: this worker goes, but has what others do not have yet.
    """

    scope: str  # a membership, or one with "+" when it has ended and none follows yet
    copy: Replica | None = None
    holders: tuple[tuple[str, int], ...] = ()  # address and port of who has it
    put: bool = False
    go: bool = False
    keep: bool = False
    wait: bool = False

    @property
    def digest(self) -> str:
        """Of what is to be in place."""
        return self.copy.digest if self.copy else NOTHING
