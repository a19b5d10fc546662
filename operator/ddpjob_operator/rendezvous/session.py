"""A session with one rendezvous service: polls its reports, sends the expected workers.

May not: decide anything, or know which shell uses the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable

from ddpjob_operator.rendezvous.client import (
    InvalidReportError,
    ServiceClient,
    ServiceUnavailableError,
)
from ddpjob_protocol.control import Expectation, Report

FIRST_RETRY_SECONDS = 0.2

log = logging.getLogger("ddpjob.rendezvous")


@dataclasses.dataclass(frozen=True)
class Polling:
    """The pace of a session's polls."""

    wait_seconds: float  # longest wait of a request
    longest_retry_seconds: float
    only_news: bool  # training progress alone does not end a request


class RendezvousSession:
    """The newest report of a service, and the expectation that the service has."""

    def __init__(
        self, client: ServiceClient, polling: Polling, on_report: Callable[[], None]
    ) -> None:
        """`on_report` is called for each new report, and if the first request fails.

        It is also called if a report is refused, until the next report is accepted.
        """
        self.report: Report | None = None
        self.invalid_report = ""  # why the first report since `report` was refused
        self._client = client
        self._polling = polling
        self._on_report = on_report
        self._tried = False
        self._sent: tuple[int, int, Expectation] | None = None  # term and boot of the service
        self._task: asyncio.Task[None] | None = None

    @property
    def awaiting_first_report(self) -> bool:
        """True while the first request is pending; its end calls `on_report`."""
        return not self._tried

    @property
    def failed(self) -> bool:
        """True if an unexpected error has ended the polling; `close` raises the error."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Start to poll."""
        self._task = asyncio.create_task(self._poll())

    def cancel(self) -> None:
        """Stop polling, without a wait."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stop polling and wait for the end; raise the error that has ended the polling."""
        self.cancel()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def expect(self, expectation: Expectation) -> bool:
        """Send an expectation unless the service has it; return False if there is no answer."""
        service = (self.report.term, self.report.boot) if self.report else (0, 0)
        if self._sent == (*service, expectation):
            return True
        try:
            await self._client.expect(expectation)
        except ServiceUnavailableError as error:
            log.debug("the service does not answer: %s", error)
            return False
        self._sent = (*service, expectation)
        return True

    async def _poll(self) -> None:
        polling, version, retry = self._polling, 0, FIRST_RETRY_SECONDS
        while True:
            wait = polling.wait_seconds if version else 0.0
            try:
                report = await self._client.report(version, wait, only_news=polling.only_news)
            except ServiceUnavailableError as error:
                version = 0
                is_news = isinstance(error, InvalidReportError) and not self.invalid_report
                if is_news:
                    self.invalid_report = str(error)
                if is_news or not self._tried:
                    self._tried = True
                    self._on_report()
                await asyncio.sleep(retry)
                retry = min(2 * retry, polling.longest_retry_seconds)
                continue
            retry, version = FIRST_RETRY_SECONDS, report.version
            self._tried = True
            if report != self.report or self.invalid_report:
                self.report, self.invalid_report = report, ""
                self._on_report()
