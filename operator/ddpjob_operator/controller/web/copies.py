"""Copies of all DDPJobs for the web page, kept by watches of their own.

The passes of an operator read jobs one by one, and a standby makes none. So these watches serve
both, and exist only with the web page.
May not: write to the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.api.stored_job import read_status
from ddpjob_operator.kube.interface import ApiServer
from ddpjob_operator.kube.reflector import Reflector
from ddpjob_operator.report.job_list import JobLine, line_of_status


@dataclasses.dataclass(frozen=True)
class JobCopy:
    """A job's identity and status; the status is parsed when a visitor asks for it."""

    namespace: str
    name: str
    uid: str
    version: str
    created: str
    text: str  # of the status, in JSON: a tenth of the memory of its objects

    @property
    def job(self) -> str:
        """The store's index."""
        return self.name

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that a report needs."""
        return {"namespace": self.namespace, "name": self.name}

    def read_status(self) -> DDPJobStatus:
        """Return the fields of the status that this version can read."""
        return read_status(json.loads(self.text))[0]

    @functools.cached_property
    def line(self) -> JobLine:
        """The row of the list, made once for each version of the job."""
        created = datetime.fromisoformat(self.created) if self.created else None
        return line_of_status(self.namespace, self.name, created, self.read_status())


class JobCopies:
    """The jobs of the watched namespaces."""

    def __init__(self, kube: ApiServer, scopes: Iterable[str]) -> None:
        """`scopes`: part of the path for each namespace; empty text for all."""
        self._reflectors = [
            Reflector(
                kube,
                f"/apis/{constants.API_VERSION}{scope}/{constants.PLURAL}",
                "",
                _copy,
                lambda _: None,
            )
            for scope in scopes
        ]

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follow the jobs until the end of the block."""
        tasks = [asyncio.ensure_future(each.run()) for each in self._reflectors]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def problem(self) -> str:
        """Why the copies may be old; an empty text if they are not."""
        found = (each.error or ("" if each.synced.is_set() else "not listed yet")
                 for each in self._reflectors)  # fmt: skip
        return "; ".join(filter(None, found))

    @property
    def listed(self) -> bool:
        """True once all jobs were listed."""
        return all(each.synced.is_set() for each in self._reflectors)

    def all(self) -> list[JobCopy]:
        """Return all jobs."""
        return [copy for each in self._reflectors for copy in each.items()]

    def get(self, namespace: str, name: str) -> JobCopy | None:
        """Return a job, or None."""
        found = (copy for each in self._reflectors for copy in each.by_job(namespace, name))
        return next(found, None)


def _copy(raw: Mapping[str, Any]) -> JobCopy:
    metadata = raw["metadata"]
    return JobCopy(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        metadata.get("creationTimestamp") or "",
        json.dumps(raw.get("status") or {}, separators=(",", ":")),
    )
