"""The right to resume from a snapshot directory: one numbered record for each resume.

A group of processes may be fenced without notice, for example behind a network partition, and
continue to train. Its snapshots do not count beyond the step from which its successor resumed. Each
snapshot names its writer and the writer's fence, and a later fence limits all earlier ones. Of two
memberships of one job, the order of the memberships decides which fence is later. Between other
owners, the number decides, which means nothing in another storage. So a late write never wins. The
only requirement is that two processes cannot create the same record: no clock, no lock, no service.
This module must not depend on the storage of the records; see `storage.fence_files`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP = 20  # records; all of them limit a still older writer, strictly enough

_log = logging.getLogger("ddpjob")


class Owner(NamedTuple):
    """A membership of a job, or a process without a membership, that resumes and writes."""

    job: str  # the job's uid
    membership: str
    name: str = ""  # the job's namespace and name

    @property
    def order(self) -> MembershipId:
        """The order of the memberships of one job; below all of them for a process alone."""
        return MembershipId.parse(self.membership) if self.job else MembershipId(0, 0, 0)

    def is_of_other_job(self, owner: Owner) -> bool:
        """Return whether both are of jobs, and the jobs' names differ."""
        return bool(self.name and owner.name) and self.name != owner.name

    def __str__(self) -> str:
        if not self.job:
            return f"process {self.membership}"
        return f"membership {self.membership}" + (f" of job {self.name}" if self.name else "")


def parse_owner(record: dict[str, Any]) -> Owner:
    """Return the owner that a record names. Raise KeyError, TypeError or ValueError."""
    owner = Owner(record["job"], record["membership"], {"name": "", **record}["name"])
    if not all(isinstance(each, str) for each in owner):
        raise TypeError(f"{owner!r} names no owner")
    if owner.job:
        MembershipId.parse(owner.membership)
    return owner


class Fence(NamedTuple):
    """The record that an owner resumed from a step."""

    number: int
    owner: Owner
    step: int


class Origin(NamedTuple):
    """The step of a snapshot, and its writer as far as a reader knows it."""

    step: int
    writer: Owner | None  # None: the writer's fence is gone, and the manifest is not read
    number: int | None  # of the writer's fence; None beside the fences of another storage


def is_fenced(origin: Origin, fences: Iterable[Fence], chooser: Owner | None = None) -> bool:
    """Return whether a later owner has resumed from an earlier step: the snapshot does not count.

    `fences` are those of one storage, by number; only the last one of each owner binds. The fences
    of `chooser`, which still selects its snapshot, do not bind.
    """
    last = {fence.owner: fence for fence in fences if fence.owner != chooser}
    return any(
        fence.step < origin.step and _is_later(fence, origin.writer, origin.number)
        for fence in last.values()
    )


def is_overtaken(origin: Origin, fences: Iterable[Fence]) -> bool:
    """Return whether a later owner has resumed, whatever its step: the writer adds no snapshot."""
    return any(_is_later(fence, origin.writer, origin.number) for fence in fences)


def _is_later(fence: Fence, owner: Owner | None, number: int | None) -> bool:
    """Return whether a fence is later than an owner and the number of its fence."""
    if owner is not None and owner.job and fence.owner.job == owner.job and fence.owner != owner:
        return fence.owner.order > owner.order
    return number is not None and fence.number > number


class FenceStorage(Protocol):
    """Numbered records, each created once and never changed. Each method may raise OSError."""

    where: str  # for log lines and errors

    def numbers(self) -> list[int]:
        """Return the numbers of the existing records, in any order."""

    def read(self, number: int) -> bytes | None:
        """Return a record; None if there is no such record. Raise ValueError if it is large."""

    def create(self, number: int, record: bytes) -> bool:
        """Create a record; return False if the number is in use. Only one caller succeeds."""

    def delete(self, number: int) -> None:
        """Delete a record that is no longer needed."""

    def name(self, number: int) -> str:
        """Return the record's name for log lines and errors."""


class FenceLog:
    """The fences of one storage."""

    def __init__(self, records: FenceStorage) -> None:
        self._records = records
        self._known: dict[int, Fence] = {}  # fences never change

    def all(self) -> list[Fence]:
        """Return the fences by number. Raise OSError."""
        numbers = sorted(self._records.numbers())
        self._known = {n: fence for n in numbers if (fence := self._known.get(n) or self._read(n))}
        return list(self._known.values())

    def add(self, owner: Owner, step: int) -> Fence:
        """Add the fence of a resume from `step`. Raise OSError.

        Raise FencedError if a later membership has resumed.
        """
        while True:
            if later := self._later_than(owner, None):
                raise FencedError(
                    f"{self._resumed(later)}: {owner} is an earlier membership and may not save."
                )
            fence = Fence(max(self._records.numbers(), default=0) + 1, owner, step)
            record = {**owner._asdict(), "step": step}
            if self._records.create(fence.number, json.dumps(record).encode()):
                self._delete_old(fence.number - KEEP)
                return fence

    def check(self, own: Fence) -> None:
        """Raise FencedError if another owner has resumed since. Raise OSError."""
        if later := self._later_than(own.owner, own.number):
            raise FencedError(
                f"{self._resumed(later)}: {own.owner} is fenced, and its snapshots would not count."
            )

    def _later_than(self, owner: Owner, number: int | None) -> Fence | None:
        """Return the first later fence of another owner. Raise OSError."""
        others = (fence for fence in self.all() if fence.owner != owner)
        return next((fence for fence in others if _is_later(fence, owner, number)), None)

    def _resumed(self, fence: Fence) -> str:
        return f"{fence.owner} has resumed from step {fence.step} in {self._records.where}"

    def _read(self, number: int) -> Fence | None:
        try:
            record = self._records.read(number)
            if record is None:
                return None  # just deleted
            content = json.loads(record)
            return Fence(number, parse_owner(content), int(content["step"]))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            _log.warning("%s is ignored: %r", self._records.name(number), error)
            return None

    def _delete_old(self, newest: int) -> None:
        for number in self._records.numbers():
            if number <= newest:
                self._records.delete(number)
