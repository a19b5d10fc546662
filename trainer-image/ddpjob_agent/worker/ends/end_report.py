"""Reports the end of a run of the command to the service: its success or its failure, once.

The exit code of a live process does not count as success before the last step is done. May not: start or end
a process.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from typing import TYPE_CHECKING

from ddpjob_agent.worker.decisions import orders
from ddpjob_agent.worker.ends.denied_folder import explain_denied
from ddpjob_agent.worker.ends.early_end import early_end
from ddpjob_agent.worker.ends.failure_report import explain_missing_script, read_failure
from ddpjob_agent.worker.ends.memory_kills import MemoryKills, explain_memory
from ddpjob_agent.worker.launch import recorded_steps
from ddpjob_agent.worker.processes.start_attempts import start_failure
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.agent import Failure

if TYPE_CHECKING:
    from ddpjob_agent.net.service_connection import ServiceConnection
    from ddpjob_agent.output.capture import OutputCapture
    from ddpjob_agent.worker.decisions.orders import AgentState, Run
    from ddpjob_agent.worker.processes.live_processes import LiveProcesses
    from ddpjob_agent.worker.settings import AgentSettings

log = logging.getLogger("ddpjob.agent")


class EndReport:
    """The reports of the ends of one worker's command."""

    def __init__(
        self,
        settings: AgentSettings,
        state: AgentState,
        link: ServiceConnection,
        live: LiveProcesses,
        output: OutputCapture,
        memory: MemoryKills | None = None,
    ) -> None:
        self._settings = settings
        self._state = state
        self._link = link
        self._live = live
        self._output = output
        self._memory = memory or MemoryKills()

    def on_exit(self, run: Run | None, code: int, logs: str, *, is_silent: bool) -> None:
        """Report the exit of a run that is still wanted.

        `logs` is the folder of the run's log files. `is_silent`: there was no report of progress.
        """
        no_memory = self._memory.news()
        if run is None or not self._awaits(run):
            return
        log.info("the command ended with exit code %d", code)
        if code == 0 and run.live:
            self._success = asyncio.ensure_future(self._on_live_success(run, logs))
        elif code == 0:
            self._report(run, None)
        else:
            worker_of = functools.partial(self._settings.worker_of, run.membership)
            failure = read_failure(code, time.time(), *self._output.errors, logs, worker_of)
            if run.is_first and is_silent:
                failure = explain_missing_script(failure, os.getcwd())
            failure = explain_memory(failure, no_memory)
            self._fail(run, explain_denied(failure, self._settings.snapshot_folder, os.getcwd()))

    def on_early_end(self, run: Run | None, local_rank: int, logs: str) -> None:
        """Report that a live process ended before the last step, whatever the others do."""
        if run is not None and self._awaits(run):
            rank = self._live.first_rank + local_rank
            self._fail(run, early_end(rank, local_rank, self._settings.worker, logs))

    def report_steps(self, run: Run, logs: str) -> None:
        """Report the last step in the steps file; the processes may have ended before a report."""
        membership, steps = self._membership_of(run), recorded_steps(logs)
        if membership and steps:
            self._state.steps_done = {"membership": membership, "step": max(steps)}
            self._link.send({"type": "steps_done", **self._state.steps_done})

    def fail_to_install(self, run: Run, problem: str) -> None:
        """Report that the replica of a run could not be installed."""
        self._fail(run, Failure(time.time(), f"{self._settings.worker}: {problem}"))

    def fail_to_start(self, run: Run, program: str, error: OSError) -> None:
        """Report that the command of a run could not be started."""
        subject = f"{self._settings.worker} cannot start {program!r}"
        self._fail(run, start_failure(subject, error, time.time()))

    def _fail(self, run: Run, failure: Failure) -> None:
        log.warning("%s", failure.summary)
        self._report(run, failure)

    async def _on_live_success(self, run: Run, logs: str) -> None:
        early = await self._live.early_ends()
        if early:
            self.on_early_end(run, min(early), logs)
        elif self._awaits(run):
            self._report(run, None)

    def _awaits(self, run: Run) -> bool:
        return run is self._state.wanted and run.ended_under is None

    def _report(self, run: Run, failure: Failure | None) -> None:
        orders.on_exit(self._state, run, failure)
        self._link.send(
            {
                "type": "exited",
                "membership": self._membership_of(run),
                "live": run.live,
                "failure": encode(self._state.failure),
                "clock": time.time(),
            }
        )

    def _membership_of(self, run: Run) -> str:
        return str(run.membership.id) if run.membership else self._live.entered
