"""The agent: first process of a worker pod; runs the user's command on the service's orders.

    service ──run M──► stop the command, start it with M's environment ──exit──► service
            ──halt───► stop the command
            ──finish─► stop the command, end the agent

In live mode the agent starts the command once and assigns each membership to its processes:

    service ──run M──► start the command unless it runs; its processes enter M
            ──stay───► start the command unless it runs; its processes wait in memory, or leave

The agent obeys only the highest membership that it has seen. The service alone decides which
workers are lost and what a failure means.
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

from ddpjob_agent.file_sync.inventory import LocalReplicas
from ddpjob_agent.file_sync.local_files import TrackedFiles
from ddpjob_agent.file_sync.replica_store import open_replica_store
from ddpjob_agent.file_sync.syncer import FileSyncer
from ddpjob_agent.forkserver.client import ForkServerClient
from ddpjob_agent.net.framing import RejectedError
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_agent.worker.c10d_relay import StoreRelay
from ddpjob_agent.worker.connectivity import ConnectivityCheck
from ddpjob_agent.worker.failure_report import read_failure
from ddpjob_agent.worker.graceful_stop import GracefulStop
from ddpjob_agent.worker.launch import Command, import_environment, steps_done
from ddpjob_agent.worker.live_processes import LiveProcesses
from ddpjob_agent.worker.process_tree import ProcessTree
from ddpjob_agent.worker.progress_socket import ProgressSocket
from ddpjob_agent.worker.runs import Run, RunFactory
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.environment import GROUP_SOCKET, REPORT_SOCKET, Launcher
from ddpjob_protocol.exit_codes import Exit
from ddpjob_protocol.membership import Cause, Member, Membership
from ddpjob_protocol.messages import PROTOCOL, Failure, Message
from ddpjob_protocol.process import Assignment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGWINCH)
PLANNED = (Cause.JOINED, Cause.LEFT)
PLANNED_STOP_SECONDS = 3.0  # between SIGTERM and SIGKILL, for healthy processes
LEAVE_SECONDS = 10.0  # between SIGTERM and SIGKILL, when the pod is deleted
RESERVE_SECONDS = 5.0  # of the pod's grace period, kept for the agent's own end

log = logging.getLogger("ddpjob.agent")


class AgentSettings(NamedTuple):
    """The settings of one agent, fixed at its start."""

    worker: str
    processes: int
    host: str
    port: int
    token: str
    address: str
    orphan_seconds: float
    grace_seconds: float
    fork_server_enabled: bool
    termination_log: str
    program: tuple[str, ...]  # command that starts one of the agent's roles
    fork_server: tuple[int, int] | None = None  # descriptor and process id of a running one
    launcher: Launcher = Launcher.TORCHRUN
    files: tuple[str, ...] = ()  # paths that an unchanged script saves to
    snapshot_folder: str = ""


class Agent:
    """The agent of one worker."""

    def __init__(
        self, settings: AgentSettings, argv: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._argv = argv
        self._environment = environment
        incarnation = uuid.uuid4().hex
        self._me = Member(settings.worker, incarnation, settings.address, settings.processes)
        self._folder = tempfile.mkdtemp(prefix="ddpjob-")
        self._link = ServiceConnection(
            settings.host,
            settings.port,
            settings.token,
            self._hello,
            self._on_order,
            self._exit_message,
        )
        self._relay = StoreRelay(self._link)
        user = Command(argv, environment)
        self._starts = RunFactory(self._folder, user, settings.launcher, settings.program)
        self._reach = ConnectivityCheck(self._link.send)
        self._reports = ProgressSocket(self._report)
        self._live = LiveProcesses(settings.processes, self._link.send, self._restart_live)
        self._membership: Membership | None = None  # the highest membership seen
        self._order = ("", "")  # type and membership of the newest order
        self._wanted: Run | None = None
        self._started: Run | None = None  # the run whose processes may exist
        patience = max(0.0, settings.grace_seconds - LEAVE_SECONDS - RESERVE_SECONDS)
        self._stopping = GracefulStop(self._live, self._link.send, patience)
        self._had_done: Message | None = None  # last step of the processes that ended last
        self._done = False
        self._failure: Failure | None = None
        self._finish: Message | None = None
        self._left_at: float | None = None
        self._halted_by_plan = False
        self._wake = asyncio.Event()
        files = TrackedFiles(settings.files, os.getcwd(), settings.worker)
        shared = settings.snapshot_folder if settings.files else ""
        shelf = open_replica_store((shared, self._folder), settings.worker)
        self._keeper = FileSyncer(
            LocalReplicas(files, shelf), settings.token, self._link.send, self._wake.set
        )
        self._standby = ForkServerClient()
        self._ended = asyncio.Event()  # set when the command that started last has ended

    async def run(self) -> int:
        """Run until the job ends or a signal arrives; return the exit code."""
        self._processes = ProcessTree(self._exited, self._standby)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_sigterm)
        for number in FORWARDED:
            loop.add_signal_handler(number, self._processes.signal, number)
        environment = import_environment(self._environment, self._settings.processes)
        wanted, given = self._settings.fork_server_enabled, self._settings.fork_server
        self._standby.begin(self._argv, environment, wanted=wanted, given=given)
        await self._relay.start()
        await self._starts.local_store.start()
        self._reports.listen(os.path.join(self._folder, REPORT_SOCKET))
        await self._live.listen(os.path.join(self._folder, GROUP_SOCKET))
        await self._reach.listen(self._settings.address)
        if self._settings.files:
            await self._keeper.listen(self._settings.address)
        tasks = [
            asyncio.ensure_future(self._register()),
            asyncio.ensure_future(self._watch_service_contact()),
            asyncio.ensure_future(self._supervise()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await next(iter(done))
        except RejectedError as error:
            log.error("%s", error)  # noqa: TRY400 - users need no traceback
            return Exit.REFUSED
        finally:
            self._standby.close()
            await self._processes.stop(grace=0)
            self._keeper.close()
            self._live.close()
            self._reports.close()
            self._starts.port.close()
            self._reach.close()
            for task in tasks:
                task.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._exit_code()

    async def _register(self) -> None:
        """Register after the fork server is ready: the other workers stop to admit this one."""
        await self._standby.wait()
        await self._link.run()

    # --- orders of the service --------------------------------------------------------------------

    def _hello(self) -> Message:
        return {
            "protocol": PROTOCOL,
            "member": encode(self._me),
            "membership": encode(self._membership),
            "running": self._wanted is not None,
            "live": self._wanted is not None and self._wanted.live,
            "ready": self._live.ready,
            "finished": self._live.finished,
            "stops": self._live.stops,
            "stopped": self._stopping.stopped_in,
            "had_done": self._had_done,
            "done": self._done,
            "failure": encode(self._failure),
            "reports": self._reports.last_messages(),
            "files": self._keeper.inventory_message(),
            "port": self._starts.port.number,
            "reach": self._reach.port,
        }

    def _exit_message(self) -> Message:
        return {"processes": self._reports.alive()}

    def _on_order(self, order: Message) -> None:
        if order["type"] == "run":
            self._enter_membership(decode(Membership, order["membership"]), order)
        elif order["type"] == "stay":
            self._order = ("stay", "")
            self._keep_live()
            self._live.assign(
                Assignment(leave=order["leave"], last_step=order["after"], save=order["save"])
            )
        elif order["type"] == "halt":
            self._order = ("halt", "")
            self._wanted = None
            self._halted_by_plan = order.get("planned", False)
            self._on_last_step(order, asked=False)
            self._keeper.on_order(order)
        elif order["type"] == "finish":
            self._finish, self._wanted = order, None
        self._wake.set()

    def _enter_membership(self, membership: Membership, order: Message) -> None:
        held = self._membership
        if self._me not in membership.members or (held and membership.id < held.id):
            return  # the order is for an earlier incarnation, or superseded
        self._keeper.on_order(order)
        if held is None or membership.id > held.id:
            self._membership = membership
            self._reach.check(membership, self._me, order.get("reach", {}))
            self._done, self._failure = False, None
            if not order["live"]:
                self._wanted = Run(membership, order.get("port"))
            elif self._live.finished:  # the processes change no more; new ones load the last save
                self._wanted = Run(None)
        if order["live"]:
            self._link.bind_store(str(membership.id))
            self._order = ("run", str(membership.id))
            self._keep_live()
            first_rank = sum(each.processes for each in _previous_membership(self._me, membership))
            self._live.assign(Assignment(membership, first_rank, stop_requested=order["asked"]))
        else:
            self._on_last_step(order, asked=order["asked"])

    def _on_last_step(self, order: Message, *, asked: bool) -> None:
        running = self._started.membership if self._started is not None else None
        self._stopping.on_order(order, running, asked=asked)

    def _keep_live(self) -> None:
        """Want live processes; start them again if they ended under an earlier order."""
        wanted = self._wanted
        if wanted is None or not wanted.live or wanted.ended_under not in (None, self._order):
            self._wanted = Run(None)
            self._done, self._failure = False, None

    # --- processes --------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._finish and not self._leaving:
            await self._wake.wait()
            self._wake.clear()
            if self._started is not None and self._started is not self._wanted:
                await self._let_stop(self._started)
                await self._processes.stop(self._grace())
                self._report_steps(self._started)
                self._started = None
                self._keeper.on_idle()
            if self._wanted is not None and self._started is None and not self._leaving:
                await self._stopping.wait_for_save()
            if self._wanted is not None and self._started is None and not self._leaving:
                membership = self._wanted.membership
                if membership is None or self._keeper.may_start(membership):
                    await self._start(self._wanted)
        if self._left_at is not None:
            if self._started is not None:
                await self._let_stop(self._started)
            await self._processes.stop(LEAVE_SECONDS)
            self._keeper.on_idle()
            await self._hand_over(self._left_at)

    async def _hand_over(self, since: float) -> None:
        """Wait until other workers have copied the replicas that only this worker holds."""
        until = since + self._settings.grace_seconds - RESERVE_SECONDS
        while self._keeper.must_wait_for_copy(time.monotonic() - since) and self._link.connected:
            if self._finish is not None or time.monotonic() > until:
                break
            await asyncio.sleep(0.05)

    async def _let_stop(self, launch: Run) -> None:
        """Wait until the processes have done their last step and their saves."""
        self._keeper.hurry()
        await self._stopping.wait(lambda: self._must_wait(launch))
        if launch.membership is None:
            return
        self._stopping.on_stopped(launch.membership)
        if self._wanted is None or not self._wanted.live:
            self._link.unbind_store(str(launch.membership.id))

    def _report_steps(self, launch: Run) -> None:
        """Report the last step in the steps file; the processes may have ended before a report."""
        membership = str(launch.membership.id) if launch.membership else self._live.entered
        step = steps_done(self._starts.logs)
        if membership and step is not None:
            self._had_done = {"membership": membership, "step": step}
            self._link.send({"type": "had_done", **self._had_done})

    def _must_wait(self, launch: Run) -> bool:
        if self._ended.is_set():
            return False
        if launch.live:
            return self._leaving
        if self._live.stops:
            awaits_word = self._leaving and self._wanted is launch
            return self._stopping.has_step_to_do(awaits_word=awaits_word)
        return self._stops_by_plan() and self._keeper.is_writing

    def _stops_by_plan(self) -> bool:
        """Return whether the processes are stopped although they could continue."""
        if self._leaving or self._wanted is None:
            return self._leaving or self._halted_by_plan
        return self._wanted.membership is not None and self._wanted.membership.cause in PLANNED

    def _grace(self) -> float:
        """Return the seconds that the old processes have to end before the next run starts."""
        wanted = self._wanted.membership if self._wanted else None
        return PLANNED_STOP_SECONDS if wanted is not None and wanted.cause in PLANNED else 0

    async def _start(self, launch: Run) -> None:
        self._started = launch
        if launch.membership is not None and self._keeper.obstacle:
            self._fail(Failure(time.time(), self._keeper.obstacle))
            return
        if launch.membership is not None:
            self._keeper.start(launch.membership)
            # A torchrun that loses its store would end the processes in their last step.
            self._link.bind_store(str(launch.membership.id), block_stale_requests=True)
        self._stopping.reset(launch.membership)
        self._ended.clear()
        self._reports.reset()
        self._live.reset()
        try:
            command = self._starts.next_command(launch, self._me, self._relay.port)
            await self._processes.start(*command)
        except OSError as error:
            summary = f"cannot start {self._argv[0]!r}: {error.strerror}"
            self._fail(Failure(time.time(), summary, exit_code=127, permanent=True))

    def _restart_live(self, has_left: bool) -> None:
        """Replace stuck live processes: with the state that they left, or by a new incarnation."""
        if not has_left:
            self._reset_live()
        elif self._wanted is not None and self._wanted.live:
            self._wanted = Run(None, inherits=True)  # the other workers wait for its processes
            self._wake.set()

    def _reset_live(self) -> None:
        """End live processes that are stuck or lack the service; register as a new incarnation."""
        self._me = dataclasses.replace(self._me, incarnation=uuid.uuid4().hex)
        self._wanted = None
        self._link.reconnect()
        self._wake.set()

    def _exited(self, code: int) -> None:
        launch = self._started
        self._reports.end()
        self._ended.set()
        if launch is None or launch is not self._wanted:
            return
        log.info("the command ended with exit code %d", code)
        if code == 0:
            self._done = True
            self._report_exit(launch)
            return
        tail, traceback_at = bytes(self._processes.stderr_tail), self._processes.traceback_at
        self._fail(read_failure(code, time.time(), tail, traceback_at, self._starts.logs))

    def _fail(self, failure: Failure) -> None:
        assert self._started is not None
        self._failure = failure
        log.warning("%s", failure.summary)
        self._report_exit(self._started)

    def _report_exit(self, launch: Run) -> None:
        launch.ended_under = self._order
        failure = encode(self._failure)
        self._link.send(
            {
                "type": "exited",
                "membership": str(launch.membership.id)
                if launch.membership
                else self._live.entered,
                "live": launch.live,
                "failure": failure,
            }
        )

    def _report(self, report: Message) -> None:
        if self._started is None:
            return
        launch = self._started.membership
        membership = report.get("membership") or (str(launch.id) if launch else "")
        self._link.send({"type": "report", "membership": membership, "report": report})

    # --- the end ----------------------------------------------------------------------------------

    @property
    def _leaving(self) -> bool:
        return self._left_at is not None

    def _on_sigterm(self) -> None:
        log.info("told to go")
        self._left_at = time.monotonic()
        self._stopping.on_sigterm()
        self._link.send({"type": "bye"})
        self._wake.set()

    async def _watch_service_contact(self) -> None:
        limit = self._settings.orphan_seconds
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            silence = time.monotonic() - self._link.last_heard
            if self._wanted is not None and silence > limit:
                log.warning("no rendezvous service for %.0f s: the processes are stopped", silence)
                if self._wanted.live:
                    self._reset_live()
                self._wanted = None
                self._halted_by_plan = False
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


def _previous_membership(me: Member, membership: Membership) -> tuple[Member, ...]:
    """Return the members whose processes have lower ranks than those of `me`."""
    return membership.members[: membership.members.index(me)]
