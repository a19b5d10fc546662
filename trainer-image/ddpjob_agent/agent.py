"""The agent: first process of a worker pod, obeys the rendezvous service for the user's command.

    service ──run M──► stop what runs, start the command with M's environment ──exit──► service
            ──halt───► stop what runs
            ──finish─► stop what runs, end

Only the highest membership seen is obeyed. Decides nothing else: not who is lost, nor what a
failure means.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import signal
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from .contract import PROTOCOL, Cause, Exit, Failure, Member, Membership, Message
from .failure import read_failure
from .launch import command_environment
from .link import Link
from .processes import Processes
from .relay import Relay
from .reports import Reports
from .wire import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGWINCH)
PLANNED = (Cause.JOINED, Cause.LEFT)
PLANNED_STOP_SECONDS = 3.0  # between SIGTERM and SIGKILL, where the processes are healthy
LEAVE_SECONDS = 10.0  # the same when the pod is told to go

log = logging.getLogger("ddpjob.agent")


class Settings(NamedTuple):
    """What the agent is told at its start."""

    worker: str
    processes: int
    host: str
    port: int
    token: str
    address: str
    orphan_seconds: float
    termination_log: str


class Agent:
    """Runs one worker."""

    def __init__(
        self, settings: Settings, argv: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._argv = argv
        self._environment = environment
        incarnation = uuid.uuid4().hex
        self._me = Member(settings.worker, incarnation, settings.address, settings.processes)
        self._folder = tempfile.mkdtemp(prefix="ddpjob-")
        self._link = Link(settings.host, settings.port, settings.token, self._hello, self._obey)
        self._relay = Relay(self._link)
        self._reports = Reports(self._report)
        self._membership: Membership | None = None  # the highest seen
        self._running = False  # it is to run, and was not halted since
        self._started: Membership | None = None  # whose processes there may be
        self._done = False
        self._failure: Failure | None = None
        self._finish: Message | None = None
        self._leaving = False
        self._wake = asyncio.Event()

    async def run(self) -> int:
        """Work until the job ends or a signal comes; returns the exit code."""
        self._processes = Processes(self._exited)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        for number in FORWARDED:
            loop.add_signal_handler(number, self._processes.signal, number)
        await self._relay.start()
        await self._reports.listen(os.path.join(self._folder, "report.sock"))
        tasks = [
            asyncio.ensure_future(self._link.run()),
            asyncio.ensure_future(self._watch_orphanhood()),
            asyncio.ensure_future(self._supervise()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await next(iter(done))
        except RefusedError as error:
            log.error("%s", error)  # noqa: TRY400 - no traceback for people
            return Exit.REFUSED
        finally:
            await self._processes.stop(grace=0)
            for task in tasks:
                task.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._exit_code()

    # --- what the service says --------------------------------------------------------------------

    def _hello(self) -> Message:
        return {
            "protocol": PROTOCOL,
            "member": dataclasses.asdict(self._me),
            "membership": self._membership and self._membership.to_json(),
            "running": self._running,
            "done": self._done,
            "failure": self._failure and self._failure.to_json(),
            "reports": self._reports.recall(),
        }

    def _obey(self, order: Message) -> None:
        if order["type"] == "run":
            membership = Membership.from_json(order["membership"])
            if self._membership and membership.id <= self._membership.id:
                return
            self._membership, self._running = membership, True
            self._done, self._failure = False, None
            self._link.enter(str(membership.id))
        elif order["type"] == "halt":
            self._running = False
        elif order["type"] == "finish":
            self._finish = order
        self._wake.set()

    # --- processes --------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._finish and not self._leaving:
            await self._wake.wait()
            self._wake.clear()
            wanted = self._wanted()
            if self._started is not None and self._started is not wanted:
                planned = wanted is not None and wanted.cause in PLANNED
                await self._processes.stop(PLANNED_STOP_SECONDS if planned else 0)
                self._started = None
            wanted = self._wanted()
            if wanted is not None and self._started is None:
                self._start(wanted)
        if self._leaving:
            await self._processes.stop(LEAVE_SECONDS)

    def _wanted(self) -> Membership | None:
        return self._membership if self._running and not self._finish else None

    def _start(self, membership: Membership) -> None:
        log.info(
            "membership %s (%s): %d workers, world size %d",
            membership.id, membership.cause, len(membership.members), membership.world_size,
        )  # fmt: skip
        self._started = membership
        self._reports.begin()
        folder = self._command_folder(membership)
        os.mkdir(folder)
        environment = command_environment(
            self._environment, membership, self._me.worker, self._relay.port, self._folder, folder
        )
        try:
            self._processes.start(self._argv, environment)
        except OSError as error:
            summary = f"cannot start {self._argv[0]!r}: {error.strerror}"
            self._fail(Failure(time.time(), summary, exit_code=127, permanent=True))

    def _command_folder(self, membership: Membership) -> str:
        return os.path.join(self._folder, str(membership.id))

    def _exited(self, code: int) -> None:
        if self._started is None or self._started is not self._wanted():
            return
        log.info("the command ended with exit code %d", code)
        if code == 0:
            self._done = True
            self._tell_exit()
            return
        self._fail(
            read_failure(
                code,
                time.time(),
                bytes(self._processes.stderr_tail),
                self._processes.traceback_at,
                self._command_folder(self._started),
            )
        )

    def _fail(self, failure: Failure) -> None:
        self._failure = failure
        log.warning("%s", failure.summary)
        self._tell_exit()

    def _tell_exit(self) -> None:
        assert self._started is not None
        failure = self._failure and self._failure.to_json()
        message = {"type": "exited", "membership": str(self._started.id), "failure": failure}
        self._link.send(message)

    def _report(self, report: Message) -> None:
        if self._started is not None:
            membership = str(self._started.id)
            self._link.send({"type": "report", "membership": membership, "report": report})

    # --- the end ----------------------------------------------------------------------------------

    def _leave(self) -> None:
        log.info("told to go")
        self._leaving = True
        self._link.send({"type": "bye"})
        self._wake.set()

    async def _watch_orphanhood(self) -> None:
        limit = self._settings.orphan_seconds
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            silence = time.monotonic() - self._link.last_heard
            if self._running and silence > limit:
                log.warning("no rendezvous service for %.0f s: the processes are stopped", silence)
                self._running = False
                self._link.reconnect()
                self._wake.set()

    def _exit_code(self) -> int:
        if self._finish is None:
            return Exit.STOPPED
        if self._finish["ok"]:
            return Exit.OK
        try:
            with open(self._settings.termination_log, "w", encoding="utf-8") as file:
                file.write(self._finish["reason"])
        except OSError as error:
            log.debug("no termination message: %s", error)
        return Exit.FAILED
