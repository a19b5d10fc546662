"""The newest report of the service, and the operator's polls that wait for a newer one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.registry.report import build_report

if TYPE_CHECKING:
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.control import Report

log = logging.getLogger("ddpjob.rendezvous")


class ReportBoard:
    """The newest report of one job."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._report = build_report(state, version=1)
        self._news_version = 1  # version of the last report that changed more than progress
        self._reported = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def publish(self) -> None:
        """Make the report of the present state the newest one."""
        self._put(build_report(self._state, self._report.version))

    def publish_warnings(self) -> None:
        """Publish the present warnings with all else as before; this reads no other state."""
        self._put(dataclasses.replace(self._report, warnings=self._state.warnings.warnings()))

    def _put(self, report: Report) -> None:
        if report == self._report:
            return
        if report.reason != self._report.reason:
            log.info("%s: %s", report.state, report.reason)
        version = report.version + 1
        if report.without_progress() != self._report.without_progress():
            self._news_version = version
        self._report = dataclasses.replace(report, version=version)
        task = asyncio.ensure_future(self._wake_polls())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake_polls(self) -> None:
        async with self._reported:
            self._reported.notify_all()

    async def report_after(self, version: int, seconds: float, only_news: bool) -> Report:
        """Return the report once it is newer than `version`, at the latest after `seconds`."""

        def differs() -> bool:
            if only_news and version <= self._report.version:
                return self._news_version > version
            return self._report.version != version

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(differs), seconds)
        return self._report

    async def _until(self, differs: Callable[[], bool]) -> None:
        async with self._reported:
            await self._reported.wait_for(differs)
