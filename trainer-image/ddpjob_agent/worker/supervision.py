"""Starts and stops the runs of the command, as `orders` and `next_action` decide."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.inventory import open_replicas
from ddpjob_agent.file_sync.syncer import FileSyncer
from ddpjob_agent.forkserver.client import ForkServerClient
from ddpjob_agent.forkserver.eligibility import python_of
from ddpjob_agent.launchers.signals import FORWARDED
from ddpjob_agent.net.c10d_relay import StoreRelay
from ddpjob_agent.output.capture import OutputCapture
from ddpjob_agent.worker.decisions import orders
from ddpjob_agent.worker.decisions.next_action import Action, View, next_action
from ddpjob_agent.worker.ends.end_report import EndReport
from ddpjob_agent.worker.launch import Command, RunFactory, import_environment
from ddpjob_agent.worker.processes import start_attempts
from ddpjob_agent.worker.processes.graceful_stop import GracefulStop
from ddpjob_agent.worker.processes.live_processes import LiveProcesses
from ddpjob_agent.worker.processes.process_tree import ProcessTree
from ddpjob_agent.worker.processes.progress_socket import ProgressSocket
from ddpjob_agent.worker.processes.stacks import StackCollector
from ddpjob_agent.worker.settings import LEAVE_SECONDS, RESERVE_SECONDS
from ddpjob_protocol.environment import GROUP_SOCKET, REPORT_SOCKET
from ddpjob_protocol.messages.agent import Message
from ddpjob_protocol.messages.warnings import invalid_report, start_delayed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ddpjob_agent.net.service_connection import ServiceConnection
    from ddpjob_agent.worker.decisions.orders import AgentState, Effects, Run
    from ddpjob_agent.worker.settings import AgentSettings
    from ddpjob_protocol.keys.credentials import WorkerKeys

log = logging.getLogger("ddpjob.agent")


class Supervisor:
    """The supervisor of one worker's command and its processes."""

    def __init__(
        self,
        settings: AgentSettings,
        keys: WorkerKeys,
        user: Command,
        folder: str,
        state: AgentState,
        link: ServiceConnection,
    ) -> None:
        """`folder` is for sockets and logs."""
        self._settings = settings
        self._user = user
        self._folder = folder
        self._state = state
        self._link = link
        self._started: Run | None = None  # the run whose processes may exist
        self._has_ended = False  # the command that started last
        self._has_left = False  # the processes were stopped after SIGTERM
        self._wake = asyncio.Event()
        self._relay = StoreRelay(link)
        program, peers = settings.program, keys.peers
        self._launches = RunFactory(folder, user, settings.launcher, program, peers.key)
        self._reports = ProgressSocket(self._report, self._refused)
        self._live = LiveProcesses(
            settings.processes, link.send, self._restart_live, self._ended_early,
            settings.stuck_seconds,
        )  # fmt: skip
        self._stopping = GracefulStop(self._live, link.send, settings.last_step_seconds)
        folders = [settings.snapshot_folder, folder] if settings.files else [folder]
        replicas = open_replicas(settings.files, folders, settings.worker)
        self._files = FileSyncer(replicas, peers, link.send, self._wake.set)
        self._fork_server = ForkServerClient()
        self._stacks = StackCollector(link.send)
        self._output = OutputCapture(settings.launcher, settings.processes)
        self._ends = EndReport(settings, state, link, self._live, self._output)

    async def listen(self) -> None:
        """Open the sockets for processes and other workers, and start the fork server."""
        settings = self._settings
        await self._output.connect(settings.output, settings.worker)
        self._processes = ProcessTree(self._exited, self._fork_server, self._output)
        for number in FORWARDED:
            asyncio.get_running_loop().add_signal_handler(number, self._processes.signal, number)
        environment = import_environment(self._user.environment, settings.processes)
        wanted, given = settings.fork_server_enabled, settings.fork_server
        self._fork_server.begin(self._user.argv, environment, wanted=wanted, given=given)
        await self._relay.start()
        await self._launches.local_store.start()
        self._reports.listen(os.path.join(self._folder, REPORT_SOCKET))
        await self._live.listen(os.path.join(self._folder, GROUP_SOCKET))
        if settings.files:
            await self._files.listen(settings.address)

    async def close(self) -> None:
        """End all processes and close the sockets."""
        self._fork_server.close()
        await self._processes.stop(grace=0)
        self._files.close()
        self._live.close()
        self._reports.close()
        self._launches.port.close()
        await self._output.disconnect()

    async def wait_until_warm(self) -> None:
        """Wait until the fork server is ready, or is not used."""
        await self._fork_server.wait()

    # --- the service ------------------------------------------------------------------------------

    def hello_message(self) -> Message:
        """Return what the agent reports of its processes when it registers."""
        return {
            "ready": self._live.ready,
            "finished": self._has_finished(),
            "stops": self._live.stops,
            "stopped": self._stopping.stopped_in,
            "reports": self._reports.last_messages(),
            "files": self._files.inventory_message(),
            "port": self._launches.port.number,
        }

    def _has_finished(self) -> bool:
        """Return whether a process has done its last step in the membership of this agent."""
        membership = self._state.membership
        return membership is not None and self._live.finished_in == str(membership.id)

    def heartbeat_message(self) -> Message:
        """Return what a heartbeat of the agent reports."""
        return {"processes": self._reports.alive(), **self._launches.step_facts()}

    def follow(self, order: Message) -> Effects:
        """Change the state by an order, pass the order to the processes, and return its effects."""
        effects = orders.follow(self._state, order, finished=bool(self._live.finished_in))
        if effects.syncs_files:
            self._files.on_order(order)
        if effects.store:
            self._link.bind_store(effects.store)
        if effects.assignment is not None:
            self._live.assign(effects.assignment)
            if effects.assignment.membership is not None:
                self._output.set_first_rank(effects.assignment.first_rank)
        self._stacks.on_order(effects.stacks, self._launches.logs)
        if effects.sets_last_step:
            running = self._started.membership if self._started is not None else None
            self._stopping.on_order(order, running)
        self.wake()
        return effects

    def on_sigterm(self) -> None:
        """Stop waiting for other workers, because this worker ends."""
        self._stopping.on_sigterm()
        self.wake()

    def wake(self) -> None:
        """Compare the processes with the changed state."""
        self._wake.set()

    # --- starts and stops -------------------------------------------------------------------------

    async def run(self) -> None:
        """Run what the state wants until the job is over or the worker leaves."""
        actions: Mapping[Action, Callable[[], Awaitable[None]]] = {
            Action.WAIT: self._wait_for_change, Action.PREPARE_STOP: self._prepare_stop,
            Action.AWAIT_LAST_STEP: functools.partial(asyncio.sleep, 0.01),
            Action.CUT_OFF: self._cut_off, Action.STOP: self._stop,
            Action.AWAIT_SAVES: self._await_saves, Action.FAIL: self._fail,
            Action.START: self._start, Action.HAND_OVER: functools.partial(asyncio.sleep, 0.05),
        }  # fmt: skip
        while (action := self._next_action(time.monotonic())) is not Action.END:
            await actions[action]()

    def _next_action(self, now: float) -> Action:
        state, files = self._state, self._files
        wanted, grace = state.wanted, self._settings.grace_seconds
        membership = wanted.membership if wanted is not None else None
        left_for = now - state.left_at if state.left_at is not None else 0.0
        others_copy = state.is_leaving and files.must_wait_for_copy(left_for)
        view = View(
            wanted=wanted, started=self._started, has_ended=self._has_ended,
            is_over=state.finish is not None, is_leaving=state.is_leaving, has_left=self._has_left,
            is_planned=state.stops_by_plan, steps=self._stopping.steps(),
            is_writing=files.is_writing,
            may_start=membership is None or files.may_start(membership),
            cannot_install=membership is not None and bool(files.install_error),
            others_copy=others_copy and self._link.connected,
            copies_until=now - left_for + grace - RESERVE_SECONDS,
        )  # fmt: skip
        return next_action(view, now)

    async def _wait_for_change(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    async def _prepare_stop(self) -> None:
        self._files.hurry()
        self._stopping.begin(time.monotonic())

    async def _cut_off(self) -> None:
        self._stopping.cut_off()
        await self._stop()

    async def _stop(self) -> None:
        run, state, is_leaving = self._started, self._state, self._state.is_leaving
        if run is not None and run.membership is not None:
            self._stopping.on_stopped(run.membership)
            if not state.is_live:
                self._link.unbind_store(str(run.membership.id))
        await self._processes.stop(LEAVE_SECONDS if is_leaving else state.grace_seconds)
        if run is not None and not is_leaving:
            self._ends.report_steps(run, self._launches.logs)
        self._started, self._has_left = None, is_leaving
        self._stopping.on_ended()
        self._files.on_idle()

    async def _await_saves(self) -> None:
        left = self._stopping.await_saves(time.monotonic())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wait_for_change(), left)

    async def _fail(self) -> None:
        run = self._started = self._state.wanted
        assert run is not None
        self._ends.fail_to_install(run, self._files.install_error)

    async def _start(self) -> None:
        run = self._started = self._state.wanted
        assert run is not None
        if run.membership is not None:
            self._files.start(run.membership)
            # A torchrun that loses its store would end the processes in their last step.
            self._link.bind_store(str(run.membership.id), block_stale_requests=True)
        self._stopping.reset(run.membership)
        self._has_ended = False
        self._reports.reset()
        self._live.reset()
        self._relay.on_start(self._launches.expected_use(run, self._state.me))
        execute = functools.partial(self._execute, run)
        pause = functools.partial(
            start_attempts.wait_while, functools.partial(self._wants, run), self._wake
        )
        try:
            if not await start_attempts.start_with_retries(execute, pause, self._on_delay):
                self._has_ended = True
        except OSError as error:
            self._ends.fail_to_start(run, self._user.argv[0], error)

    async def _execute(self, run: Run) -> None:
        argv, environment = self._launches.next_command(run, self._state.me, self._relay.port)
        logs, python = self._launches.logs, python_of(argv, environment)
        more = self._output.prepare(argv, environment, python, logs)
        self._output.set_first_rank(None if run.membership is None else 0)
        await self._processes.start(argv, {**environment, **more})

    def _wants(self, run: Run) -> bool:
        return self._state.wanted is run and not self._state.is_leaving

    def _on_delay(self, error: OSError) -> None:
        warning = start_delayed(start_attempts.describe_delay(self._user.argv[0], error))
        log.warning("%s", warning.message)
        self._link.send(warning.to_message())

    def _restart_live(self, has_left: bool) -> None:
        """Replace stuck live processes: with the state that they left, or by a new incarnation."""
        if not has_left:
            orders.replace_incarnation(self._state, uuid.uuid4().hex)
            self._link.reconnect()
        elif self._state.is_live:
            self._state.wanted = orders.Run(None, inherits=True)  # the other workers wait for it
        self.wake()

    # --- what ended -------------------------------------------------------------------------------

    def _exited(self, code: int) -> None:
        self._reports.end()
        self._relay.on_exit(succeeded=code == 0)
        self._has_ended = True
        is_silent = not self._reports.last_messages()
        self._ends.on_exit(self._started, code, self._launches.logs, is_silent=is_silent)

    def _ended_early(self, local_rank: int) -> None:
        self._ends.on_early_end(self._started, local_rank, self._launches.logs)

    def _refused(self, problem: str) -> None:
        self._link.send(invalid_report(problem).to_message())

    def _report(self, report: Message) -> None:
        if self._started is None:
            return
        current, facts = self._started.membership, self._launches.step_facts()
        membership = report.get("membership") or (str(current.id) if current else "")
        self._link.send({"type": "report", "membership": membership, "report": report, **facts})
