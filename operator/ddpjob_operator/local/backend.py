"""Runs one job on this machine: observe, plan, execute, until the job is finished.

The local counterpart of the operator: executes the actions of `plan`. `nodes` replaces kubelets.
May not: make the decisions of `plan`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ddpjob_agent.forkserver.agents import AgentForkServer
from ddpjob_operator.agent_bundle import build_agent
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.local.chaos import ChaosEvent
from ddpjob_operator.local.devices.discovery import NO_DEVICES, Devices
from ddpjob_operator.local.devices.pool import DevicePool
from ddpjob_operator.local.faults import FaultInjector
from ddpjob_operator.local.output.receiver import OutputReceiver
from ddpjob_operator.local.record.course import FILE, Course
from ddpjob_operator.local.record.timeline import Timeline
from ddpjob_operator.local.simulated.environment import (
    ENV_FORKSERVER,
    inherited_environment,
    worker_environment,
)
from ddpjob_operator.local.simulated.key_files import write_keys
from ddpjob_operator.local.simulated.networks import NodeNetwork, SeparateNetworks
from ddpjob_operator.local.simulated.nodes import SimulatedNodes
from ddpjob_operator.local.simulated.pods import SimulatedPod, TrainingProcess
from ddpjob_operator.local.simulated.processes import CannotStartError, sweep
from ddpjob_operator.local.simulated.rendezvous_process import RendezvousProcess
from ddpjob_operator.local.state_dir import JobStateDir
from ddpjob_operator.planner.actions import (
    Action,
    CreateRendezvous,
    CreateService,
    CreateWorker,
    DeleteJob,
    DeleteRendezvous,
    DeleteWorker,
)
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.planner import plan
from ddpjob_operator.rendezvous.client import ServiceClient, connect_directly
from ddpjob_operator.rendezvous.session import Polling, RendezvousSession
from ddpjob_protocol.addresses import join_address
from ddpjob_protocol.codec import encode
from ddpjob_protocol.environment import (
    ENV_GRACE_SECONDS,
    ENV_JOB_UID,
    ENV_KEYS,
    ENV_OUTPUT,
    ENV_SERVICE,
    ENV_SNAPSHOT_DIR,
    ENV_TERMINATION_LOG,
    ENV_WORKER,
    Launcher,
)
from ddpjob_protocol.keys.credentials import KEY_BYTES, JobKey
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import Expectation, Report

RETRY_SECONDS = 0.2
POLLING = Polling(wait_seconds=30.0, longest_retry_seconds=RETRY_SECONDS, only_news=False)
RESYNC_SECONDS = 1.0


class LocalBackend:
    """A run of one job."""

    def __init__(
        self,
        job: DDPJob,
        state: JobStateDir,
        timeline: Timeline,
        *,
        workdir: Path,
        nodes: int,
        port: int | None = None,
        chaos: list[ChaosEvent] | None = None,
        network: NodeNetwork | None = None,
        environment: Mapping[str, str] = os.environ,
        output: OutputReceiver | None = None,
        devices: Devices = NO_DEVICES,
    ) -> None:
        """`output` shows what the ranks print; without it, only the logs have their output."""
        self._uid = state.uid()
        metadata = job.metadata.model_copy(update={"uid": self._uid})
        status = DDPJobStatus(rendezvous_term=state.term, observed_rendezvous_term=state.term)
        self.job = job.model_copy(update={"metadata": metadata, "status": status})
        self._state = state
        self._timeline = timeline
        self._course = Course(state.path / FILE, metadata.name, metadata.namespace, time.time())
        self._workdir = workdir
        self._devices = devices
        self._environment = inherited_environment(environment, devices.variables)
        self._key = JobKey(secrets.token_bytes(KEY_BYTES))
        self._scratch = tempfile.TemporaryDirectory(prefix="ddpjob-local-")
        self._folder = Path(self._scratch.name)
        self._agent = self._folder / "ddpjob-agent.pyz"
        self._output = output
        self._output_socket = self._folder / "output.sock"
        self._wake = asyncio.Event()
        self._network = network or (SeparateNetworks() if job.spec.sagemaker else NodeNetwork())
        log = str(state.logs / "fork-server.log")
        self._forks = AgentForkServer(log, environment.get(ENV_FORKSERVER, ""))
        self.nodes = SimulatedNodes(
            nodes, self._uid, self._wake.set, self._network, self._forks, DevicePool(devices)
        )
        self.service = self._service(port)
        self._faults = FaultInjector(chaos or (), self.nodes, self.service, timeline)
        address = connect_directly(self._network.host, self.service.port)
        self._client = ServiceClient(address, self._key.operator)
        self._session: RendezvousSession | None = None
        self._stopping = False
        self.last_failure: Failure | None = None  # that the service acted on

    @property
    def status(self) -> DDPJobStatus:
        """Status from the last pass."""
        return self.job.status

    @property
    def report(self) -> Report | None:
        """Newest report of the rendezvous service."""
        return self._session.report if self._session else None

    @property
    def logs(self) -> Path:
        """Folder of the workers' logs."""
        return self._state.logs

    async def run(self) -> DDPJobStatus:
        """Run until the job is finished or `stop` is called; leave no process; raise CannotStartError."""
        build_agent(self._agent, compiled=True)
        sweep(self._uid)
        if self._output is not None:
            await self._output.listen(self._output_socket)
        try:
            while not self._stopping and not (self._session and self._session.failed):
                if problem := self.nodes.problem or self.service.problem:
                    raise CannotStartError(problem)
                requeue_after = await self._reconcile()
                if self.status.completion_time and not self._has_workers():
                    break
                self._inject_due_faults()
                self._timeline.tick(self.report, self.logs)
                await self._wait(requeue_after)
        finally:
            if self._session:
                self._session.cancel()
            self._forks.disable()
            await self.nodes.stop()
            self._forks.close()
            await self.service.stop()
            sweep(self._uid)
            if self._output is not None:
                await self._output.close()
            self._scratch.cleanup()
            self._faults.report_missed()
            self._course.end(time.time())
            await self._end_session()
        return self.status

    def _has_workers(self) -> bool:
        """Return whether a worker still runs; keepPods may retain ended workers."""
        return not all(pod.observe().terminal for pod in self.nodes.pods.values())

    async def _wait(self, requeue_after: float | None) -> None:
        limit = RESYNC_SECONDS if requeue_after is None else min(requeue_after, RESYNC_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), limit)
        self._wake.clear()

    def stop(self) -> None:
        """End the run; a later run can resume the job."""
        self._stopping = True
        self._wake.set()

    # --- one pass ---------------------------------------------------------------------------------

    async def _reconcile(self) -> float | None:
        observed = Observed(
            job=self.job,
            workers=tuple(pod.observe() for pod in self.nodes.pods.values()),
            rendezvous=self.service.observe(),
            report=self.report,
            invalid_report=self._session.invalid_report if self._session else "",
            one_file_system=True,
        )
        planned = plan(observed, datetime.now(UTC))
        for action in planned.actions:
            await self._execute(action)
        if planned.expectation is not None:
            await self._expect(planned.expectation)
        if planned.status != self.status:
            self.job = self.job.model_copy(update={"status": planned.status})
            self._state.write("status.json", planned.status.model_dump(by_alias=True, mode="json"))
        for event in planned.events:
            self._timeline.event(event)
        return planned.requeue_after

    async def _execute(self, action: Action) -> None:
        match action:
            case CreateService():
                raise AssertionError("the address of a local service always exists")
            case CreateRendezvous():
                await self.service.start(action.term)
                self._session = RendezvousSession(self._client, POLLING, self._on_report)
                self._session.start()
            case DeleteRendezvous():
                await self.service.stop()
                await self._end_session()
            case CreateWorker():
                self.nodes.create(self._pod(action))
            case DeleteWorker():
                self.nodes.delete(action.name)
            case DeleteJob():
                pass  # the state of a finished run stays, so that a user can read it

    async def _expect(self, expectation: Expectation) -> None:
        if self._session is None or not await self._session.expect(expectation):
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._wake.set)

    def _on_report(self) -> None:
        if self.report is not None:
            self._state.write("report.json", encode(self.report))
            self._timeline.follow(self.report)
            restarts = self.job.spec.failure_policy.restarts_on_hang
            self._course.follow(self.report, restarts=restarts)
            self.last_failure = self.report.failure
        self._wake.set()

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _inject_due_faults(self) -> None:
        if self.report and self.report.memberships and not self.status.completion_time:
            self._faults.inject_due(self.report)

    # --- pods -------------------------------------------------------------------------------------

    def _pod(self, created: CreateWorker) -> SimulatedPod:
        group = next(g for g in self.job.spec.groups() if g.name == created.group)
        spec = self.job.spec
        warm = spec.elastic.warm_start and spec.resolved_launcher == Launcher.TORCHRUN
        return SimulatedPod(
            created=created,
            command=self._agent_command("worker", "--", *group.command),
            forked=TrainingProcess(group.command, group.processes) if warm else None,
            environment={
                **worker_environment(self.job, group, self._environment, self._workdir),
                ENV_WORKER: created.name,
                ENV_SERVICE: join_address(self._network.host, self.service.port),
                ENV_KEYS: write_keys(
                    self._folder, created.name, self._key.worker_keys(created.name).to_text()
                ),
                ENV_GRACE_SECONDS: str(self.nodes.grace_seconds),
                ENV_SNAPSHOT_DIR: str(self._state.snapshots),
                ENV_TERMINATION_LOG: str(self._state.logs / f"{created.name}.message"),
                "TMPDIR": str(self._folder),
                **({ENV_OUTPUT: str(self._output_socket)} if self._output else {}),
            },
            workdir=self._workdir,
            log=self._state.logs / f"{created.name}.log",
            gpus=group.gpus if self._devices.names else 0,
        )

    def _service(self, port: int | None) -> RendezvousProcess:
        command = self._agent_command("rendezvous", "--host", self._network.host)
        environment = {
            **self._environment,
            ENV_JOB_UID: self._uid,
            ENV_KEYS: write_keys(self._folder, "service", self._key.to_text()),
        }
        return RendezvousProcess(
            command, environment, self._folder, self._state.logs, self._wake.set, port
        )

    def _agent_command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self._agent), "--die-with-parent", *arguments]
