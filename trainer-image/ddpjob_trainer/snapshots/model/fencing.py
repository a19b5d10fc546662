"""Who may go on from a snapshot directory: a numbered record for each time that somebody did.

A group of processes that was overtaken, cut off by the network say, may not know it and train on.
Its snapshots do not count beyond the step from which its successor went on: each snapshot names
its writer's fence, and a later fence limits all earlier ones. So a late write cannot win, whenever
it comes. Needs nothing but that two cannot make the same record: no clock, no lock, no service.
May not: know how records are kept; `dir_fences` and `object_fences` do.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ddpjob_protocol.membership import MembershipId
from ddpjob_trainer.errors import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterable

KEEP = 20  # records; an older writer is limited by all of these, which is less than it may have

_log = logging.getLogger("ddpjob")


class Owner(NamedTuple):
    """Who goes on: a membership of a job, or a process that belongs to none."""

    job: str  # its uid
    membership: str

    def __str__(self) -> str:
        return f"membership {self.membership}" if self.job else f"process {self.membership}"


class Fence(NamedTuple):
    """From which step somebody went on."""

    number: int
    owner: Owner
    step: int


def fence_limit(fences: Iterable[Fence], number: int) -> int | None:
    """The last step of which a snapshot counts that was written behind fence `number`."""
    later = {fence.owner: fence.step for fence in fences if fence.number > number}  # by age
    return min(later.values(), default=None)


def is_fenced(step: int, number: int, fences: Iterable[Fence]) -> bool:
    """Whether what was written of that step, behind fence `number`, does not count."""
    last = fence_limit(fences, number)
    return last is not None and step > last


class FenceStorage(Protocol):
    """Numbered records, each made once and never changed. All may raise OSError."""

    where: str  # for people

    def numbers(self) -> list[int]:
        """Of those that there are, in any order."""

    def read(self, number: int) -> bytes | None:
        """One of them; None if there is none any more."""

    def create(self, number: int, record: bytes) -> bool:
        """False if the number is taken: two never get the same."""

    def delete(self, number: int) -> None:
        """One that no longer matters."""

    def name(self, number: int) -> str:
        """For people."""


class FenceLog:
    """Those of one place."""

    def __init__(self, records: FenceStorage) -> None:
        self._records = records
        self._known: dict[int, Fence] = {}  # they never change

    def all(self) -> list[Fence]:
        """By number. Raises OSError."""
        numbers = sorted(self._records.numbers())
        self._known = {n: fence for n in numbers if (fence := self._known.get(n) or self._read(n))}
        return list(self._known.values())

    def add(self, owner: Owner, step: int) -> Fence:
        """Go on from this step. Raises FencedError if a later membership has, and OSError."""
        while True:
            self._check_order(owner)
            fence = Fence(max(self._records.numbers(), default=0) + 1, owner, step)
            record = {"job": owner.job, "membership": owner.membership, "step": step}
            if self._records.create(fence.number, json.dumps(record).encode()):
                self._delete_old(fence.number - KEEP)
                return fence

    def check(self, own: Fence) -> None:
        """Raises FencedError when somebody else has gone on since, and OSError."""
        for fence in self.all():
            if fence.number > own.number and fence.owner != own.owner:
                raise FencedError(
                    f"{fence.owner} has gone on from step {fence.step} in {self._records.where}:"
                    f" {own.owner} was overtaken, and what it saves would not count."
                )

    def _check_order(self, owner: Owner) -> None:
        for fence in self.all():
            if not owner.job or fence.owner.job != owner.job:
                continue
            if MembershipId.parse(fence.owner.membership) > MembershipId.parse(owner.membership):
                raise FencedError(
                    f"{fence.owner} has gone on from step {fence.step} in {self._records.where}:"
                    f" {owner} is an earlier one, and may not."
                )

    def _read(self, number: int) -> Fence | None:
        record = self._records.read(number)
        if record is None:
            return None  # just forgotten
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
