"""Replicas of the files that a script saves its state to: their order, and the messages about them.

A replica belongs to the membership in which its last write completed. Its time is in seconds since
the start of that membership, by the clock of the watching worker. Clocks of different machines are
never compared: a replica of a later membership is newer at any time. The replica that a membership
starts from belongs to that membership, at 0 seconds.

May not: read a clock, do I/O.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.messages.membership import MembershipId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BEFORE_ALL = "0.0.0"  # membership of files that no agent saw written
NOTHING = ""  # digest of an empty set of files


class FileEntry(NamedTuple):
    """A file of a replica."""

    name: str  # relative to the working directory, or absolute
    size: int
    digest: str
    mode: int


Parts = tuple[FileEntry, ...]


def digest_of(parts: Sequence[FileEntry]) -> str:
    """Return a digest of all names, sizes and contents."""
    if not parts:
        return NOTHING
    facts = json.dumps([part[:3] for part in parts]).encode()
    return hashlib.blake2b(facts, digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True)
class Replica:
    """All files of a job's state at one time, complete."""

    membership: str
    seconds: float
    digest: str
    size: int  # bytes

    def __post_init__(self) -> None:
        """Raise ValueError if the time or size is none: each comes from messages and file names."""
        if not is_membership(self.membership):
            raise ValueError(f"{self.membership!r} is not a membership")
        if not (math.isfinite(self.seconds) and self.seconds >= 0 and self.size >= 0):
            raise ValueError(f"a copy of {self.size} bytes at {self.seconds} s is impossible")

    def __str__(self) -> str:
        return f"the copy of {self.seconds:.0f} s into membership {self.membership}"

    @property
    def order(self) -> tuple[MembershipId, float, str]:
        """Sort key, the newest last; the digest makes the order total."""
        return MembershipId.parse(self.membership), self.seconds, self.digest


def is_membership(text: str) -> bool:
    """Return whether a text is the identity of a membership, as `str` prints it."""
    try:
        found = MembershipId.parse(text)
    except ValueError:
        return False
    return str(found) == text and min(found) >= 0


def newest(copies: Iterable[Replica]) -> Replica | None:
    """Return the newest replica; None if there is none."""
    return max(copies, key=lambda copy: copy.order, default=None)


@dataclasses.dataclass(frozen=True)
class FileInventory:
    """The replicas of an agent, in answer to the last instruction."""

    scope: str  # scope of that instruction
    copies: tuple[Replica, ...] = ()
    installed: str | None = None  # digest of the installed files; None: incomplete
    begun: bool = False  # the processes of this scope were started
    port: int = 0  # of the replica server
    problem: str = ""  # error of the last failed store
    refused: tuple[str, ...] = ()  # digests of replicas that this agent does not install

    def has(self, digest: str) -> bool:
        """Return whether the agent can serve this replica."""
        return any(copy.digest == digest for copy in self.copies)


@dataclasses.dataclass(frozen=True)
class FileInstruction:
    """An instruction of the service to one agent about the files.

    scope: in a new scope the agent sends its inventory, once no process runs.
    put: install the replica, or clear the files if it is None; then send the inventory.
    go: start the processes.
    keep: fetch the replica and store it for the other workers.
    wait: this worker is leaving, but must serve a replica that the others do not have yet.
    """

    scope: str  # a membership; with "+" if it ended and none follows yet
    copy: Replica | None = None
    holders: tuple[tuple[str, int], ...] = ()  # address and port of each holder
    put: bool = False
    go: bool = False
    keep: bool = False
    wait: bool = False

    @property
    def digest(self) -> str:
        """Digest of the replica to install."""
        return self.copy.digest if self.copy else NOTHING
