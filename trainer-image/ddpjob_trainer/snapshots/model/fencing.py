"""The right to resume from a snapshot directory: one numbered record for each resume.

A group of processes may be fenced without notice, for example behind a network partition, and
continue to train. Its snapshots do not count beyond the step from which its successor resumed. Each
snapshot names its writer's fence, and a later fence limits all earlier ones. So a late write never
wins. The only requirement is that two processes cannot create the same record: no clock, no lock,
no service. This module must not depend on the storage of the records; see `dir_fences` and
`object_fences`.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ddpjob_protocol.membership import MembershipId
from ddpjob_trainer.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP = 20  # records; all of them limit a still older writer, strictly enough

_log = logging.getLogger("ddpjob")


class Owner(NamedTuple):
    """A membership of a job, or a process without a membership, that resumes and writes."""

    job: str  # the job's uid
    membership: str

    def __str__(self) -> str:
        return f"membership {self.membership}" if self.job else f"process {self.membership}"


class Fence(NamedTuple):
    """The record that an owner resumed from a step."""

    number: int
    owner: Owner
    step: int


def fence_limit(fences: Iterable[Fence], number: int) -> int | None:
    """Return the last step whose snapshot behind fence `number` counts; None without a limit."""
    later = {fence.owner: fence.step for fence in fences if fence.number > number}  # by age
    return min(later.values(), default=None)


def is_fenced(step: int, number: int, fences: Iterable[Fence]) -> bool:
    """Return whether a snapshot of this step, written behind fence `number`, does not count."""
    last = fence_limit(fences, number)
    return last is not None and step > last


class FenceStorage(Protocol):
    """Numbered records, each created once and never changed. Each method may raise OSError."""

    where: str  # for log lines and errors

    def numbers(self) -> list[int]:
        """Return the numbers of the existing records, in any order."""

    def read(self, number: int) -> bytes | None:
        """Return a record; None if there is no such record."""

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
            self._check_order(owner)
            fence = Fence(max(self._records.numbers(), default=0) + 1, owner, step)
            record = {"job": owner.job, "membership": owner.membership, "step": step}
            if self._records.create(fence.number, json.dumps(record).encode()):
                self._delete_old(fence.number - KEEP)
                return fence

    def check(self, own: Fence) -> None:
        """Raise FencedError if another owner has resumed since. Raise OSError."""
        for fence in self.all():
            if fence.number > own.number and fence.owner != own.owner:
                raise FencedError(
                    f"{fence.owner} has resumed from step {fence.step} in {self._records.where}:"
                    f" {own.owner} is fenced, and its snapshots would not count."
                )

    def _check_order(self, owner: Owner) -> None:
        for fence in self.all():
            if not owner.job or fence.owner.job != owner.job:
                continue
            if MembershipId.parse(fence.owner.membership) > MembershipId.parse(owner.membership):
                raise FencedError(
                    f"{fence.owner} has resumed from step {fence.step} in {self._records.where}:"
                    f" {owner} is an earlier membership and may not save."
                )

    def _read(self, number: int) -> Fence | None:
        record = self._records.read(number)
        if record is None:
            return None  # just deleted
        try:
            content = json.loads(record)
            owner = Owner(str(content["job"]), str(content["membership"]))
            if owner.job:
                MembershipId.parse(owner.membership)
            return Fence(number, owner, int(content["step"]))
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("%s is ignored: %r", self._records.name(number), error)
            return None

    def _delete_old(self, newest: int) -> None:
        for number in self._records.numbers():
            if number <= newest:
                self._records.delete(number)
