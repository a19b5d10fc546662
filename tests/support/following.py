"""A reflector of pods at work, and its notifications."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.kube.reflector import Reflector
from support.objects import JOB_LABEL


@dataclasses.dataclass(frozen=True)
class Thing:
    """A pod, trimmed."""

    namespace: str
    name: str
    uid: str
    version: str
    job: str
    deleting: bool


def trim(obj: dict[str, Any]) -> Thing:
    metadata = obj["metadata"]
    return Thing(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        metadata["labels"][JOB_LABEL],
        "deletionTimestamp" in metadata,
    )


class Following:
    """The notifications, and the pods of each job at its last notification."""

    def __init__(self, kube: ApiServer, path: str, **options: Any) -> None:
        self.told: list[str] = []
        self.seen: dict[str, tuple[Thing, ...]] = {}
        clock = asyncio.get_running_loop().time
        self.reflector: Reflector[Thing] = Reflector(
            kube, path, JOB_LABEL, trim, self._changed, clock=clock, **options
        )
        self.namespace = path.split("/")[4]

    def _changed(self, thing: Thing) -> None:
        self.told.append(thing.name)
        self.seen[thing.job] = self.job(thing.job)

    def error(self) -> str | None:
        return self.reflector.error

    def job(self, name: str = "digits") -> tuple[Thing, ...]:
        return self.reflector.by_job(self.namespace, name)

    def names(self, job: str = "digits") -> list[str]:
        return [thing.name for thing in self.job(job)]


@contextlib.asynccontextmanager
async def following(kube: ApiServer, path: str, **options: Any) -> AsyncIterator[Following]:
    """A reflector that runs, and ends only when the test cancels it."""
    found = Following(kube, path, **options)
    task = asyncio.ensure_future(found.reflector.run())
    try:
        yield found
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
