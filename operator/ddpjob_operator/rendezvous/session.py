"""A session with one rendezvous service: polls its reports, sends the expected workers.

May not: decide anything, or know which shell uses the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable

from ddpjob_operator.planner.observed import Silence
from ddpjob_operator.rendezvous.client import (
    InvalidReportError,
    ServiceClient,
    ServiceUnavailableError,
)
from ddpjob_protocol.messages.control import Expectation, Report

FIRST_RETRY_SECONDS = 0.2
SILENT_POLLS = 2  # polls in a row without an answer; one may fail for a moment

log = logging.getLogger("ddpjob.rendezvous")


@dataclasses.dataclass(frozen=True)
class Polling:
    """The pace of a session's polls."""

    wait_seconds: float  # longest wait of a request
    longest_retry_seconds: float
    only_news: bool  # training progress alone does not end a request
    # Shortest time between two calls for training progress alone.
    progress_seconds: Callable[[], float] = lambda: 0.0


class RendezvousSession:
    """The newest report of a service, and the expectation that the service has."""

    def __init__(
        self, client: ServiceClient, polling: Polling, on_report: Callable[[], None]
    ) -> None:
        """`on_report` is called for each new report, and at the first failures of the service.

        It is also called if the first request fails, or if a report is refused, until the next
        report is accepted.
        """
        self.report: Report | None = None
        self.invalid_report = ""  # why the first report since `report` was refused
        self._client = client
        self._polling = polling
        self._on_report = on_report
        self._tried = False
        self._errors: list[str] = []  # the last ones, since the last answer
        self._told: Report | None = None  # the report of the last call
        self._answered_at = self._told_at = 0.0  # times of the event loop
        self._has_answered = False
        self._sent: tuple[int, int, Expectation] | None = None  # term and boot of the service
        self._task: asyncio.Task[None] | None = None

    @property
    def awaiting_first_report(self) -> bool:
        """True while the first request is pending; its end calls `on_report`."""
        return not self._tried

    @property
    def unanswered(self) -> bool:
        """True if the last request had no answer."""
        return bool(self._errors)

    @property
    def silence(self) -> Silence | None:
        """The silence of the service; None while it answers."""
        if len(self._errors) < SILENT_POLLS:
            return None
        seconds = asyncio.get_running_loop().time() - self._answered_at
        return Silence(seconds, self._errors[-1], self._has_answered)

    @property
    def failed(self) -> bool:
        """True if an unexpected error has ended the polling; `close` raises the error."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Start to poll."""
        self._answered_at = asyncio.get_running_loop().time()
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
            except Exception as error:  # noqa: BLE001 - whatever a service sends, polling goes on
                version = 0
                if self._on_failure(error):
                    self._on_report()
                await asyncio.sleep(retry)
                retry = min(2 * retry, polling.longest_retry_seconds)
                continue
            retry, version = FIRST_RETRY_SECONDS, report.version
            if self._on_answer(report):
                self._on_report()

    def _on_failure(self, error: Exception) -> bool:
        """Record a request without an accepted answer; return whether it is news."""
        news = not self._tried
        self._tried = True
        if isinstance(error, InvalidReportError):
            news |= not self.invalid_report
            self.invalid_report = self.invalid_report or str(error)
            self._errors.clear()
            self._answered_at, self._has_answered = asyncio.get_running_loop().time(), True
            return news
        if not isinstance(error, ServiceUnavailableError):
            log.error("a poll failed in an unforeseen way", exc_info=error)
        self._errors.append(str(error) or type(error).__name__)
        began = len(self._errors) in (1, SILENT_POLLS)
        del self._errors[: -SILENT_POLLS - 1]
        return news or began

    def _on_answer(self, report: Report) -> bool:
        """Record a report; return whether to call back now."""
        now = asyncio.get_running_loop().time()
        news = self.silence is not None or bool(self.invalid_report)
        self._errors.clear()
        self._answered_at, self._has_answered, self._tried = now, True, True
        self.report, self.invalid_report = report, ""
        told = self._told
        if report == told and not news:
            return False
        early = now - self._told_at < self._polling.progress_seconds()
        if told is not None and early and not news and _differs_in_progress_only(report, told):
            return False  # a later poll calls back
        self._told, self._told_at = report, now
        return True


def _differs_in_progress_only(new: Report, old: Report) -> bool:
    return new.without_progress() == old.without_progress()
