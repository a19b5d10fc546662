"""Who may go on from a snapshot directory: a numbered record for each time that somebody did.

A group of processes that was overtaken, cut off by the network say, may not know it and train on.
Its snapshots do not count beyond the step from which its successor went on: each snapshot names
its writer's fence, and a later fence limits all earlier ones. So a late write cannot win, whenever
it comes. Needs nothing but an atomic rename: no clock, no lock, no service.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import secrets
import shutil
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.contract import MembershipId
from ddpjob_trainer import durable
from ddpjob_trainer.errors import OvertakenError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RECORD = "fence.json"
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


def limit(fences: Iterable[Fence], number: int) -> int | None:
    """The last step of which a snapshot counts that was written behind fence `number`."""
    later = {fence.owner: fence.step for fence in fences if fence.number > number}  # by age
    return min(later.values(), default=None)


class Fences:
    """Those of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, Fence] = {}  # they never change

    def all(self) -> list[Fence]:
        """By number. Raises OSError."""
        numbers = sorted(self._numbers())
        self._known = {n: fence for n in numbers if (fence := self._known.get(n) or self._read(n))}
        return list(self._known.values())

    def take(self, owner: Owner, step: int) -> Fence:
        """Go on from this step. Raises OvertakenError if a later membership has, and OSError."""
        while True:
            self._check_order(owner)
            fence = Fence(max(self._numbers(), default=0) + 1, owner, step)
            if self._write(fence):
                self._forget(fence.number - KEEP)
                return fence

    def check(self, own: Fence) -> None:
        """Raises OvertakenError when somebody else has gone on since, and OSError."""
        for fence in self.all():
            if fence.number > own.number and fence.owner != own.owner:
                raise OvertakenError(
                    f"{fence.owner} has gone on from step {fence.step} in {self._directory}:"
                    f" {own.owner} was overtaken, and what it saves would not count."
                )

    def _check_order(self, owner: Owner) -> None:
        for fence in self.all():
            if not owner.job or fence.owner.job != owner.job:
                continue
            if MembershipId.parse(fence.owner.membership) > MembershipId.parse(owner.membership):
                raise OvertakenError(
                    f"{fence.owner} has gone on from step {fence.step} in {self._directory}:"
                    f" {owner} is an earlier one, and may not."
                )

    def _numbers(self) -> list[int]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := re.fullmatch(r"fence-(\d{12})", name))]

    def _path(self, number: int) -> Path:
        return self._directory / f"fence-{number:012d}"

    def _read(self, number: int) -> Fence | None:
        path = self._path(number) / RECORD
        try:
            content = json.loads(path.read_bytes())
            owner = Owner(str(content["job"]), str(content["membership"]))
            if owner.job:
                MembershipId.parse(owner.membership)
            return Fence(number, owner, int(content["step"]))
        except FileNotFoundError:
            return None  # just forgotten
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("%s is ignored: %r", path, error)
            return None

    def _write(self, fence: Fence) -> bool:
        """False if the number is taken."""
        target = self._path(fence.number)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        record = {"job": fence.owner.job, "membership": fence.owner.membership, "step": fence.step}
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            aside.mkdir()
            durable.write(aside / RECORD, json.dumps(record).encode())
            durable.sync(aside)
            aside.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        durable.sync(self._directory)
        return True

    def _forget(self, newest: int) -> None:
        for number in self._numbers():
            if number <= newest:
                shutil.rmtree(self._path(number), ignore_errors=True)
