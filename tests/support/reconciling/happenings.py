"""Happenings in the simulated life of a job: by its user, its cluster and its own processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random

from ddpjob_operator.api import constants
from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import ServiceState
from support.fake_objects import JSON, POLICIES, SECRETS, SERVICES, Resource
from support.reconciling.in_memory import CheckingKube
from support.reconciling.nodes import ended as ended_status
from support.reconciling.stage import Stage, ended
from support.reconciling.training import Service
from support.reconciling.wire import Wire

JOB = "digits"
KEY = Key("default", JOB)
LONGEST_JUMP_SECONDS = 3600.0


class Happenings:
    """Each public method is one thing that may happen at any time."""

    def __init__(self, stage: Stage, kube: CheckingKube, random: Random, *wires: Wire) -> None:
        """`wires`: of the operators."""
        self.stage = stage
        self.kube = kube
        self.random = random
        self.operators: list[list[asyncio.Task[None]]] = [[] for _ in wires]
        self._wires = wires
        self._jump = timedelta()
        now = stage.now
        stage.now = lambda: now() + self._jump

    async def worker_vanishes(self) -> None:
        await self._remove(constants.ROLE_WORKER, vanishes=True)

    async def worker_is_deleted(self) -> None:
        await self._remove(constants.ROLE_WORKER, vanishes=False)

    async def rendezvous_vanishes(self) -> None:
        await self._remove(constants.ROLE_RENDEZVOUS, vanishes=self.random.random() < 0.5)

    async def worker_is_evicted(self) -> None:
        await self._end_worker({"reason": "Evicted", "message": "node pressure"})

    async def worker_ends_by_itself(self) -> None:
        await self._end_worker({})

    async def process_fails(self) -> None:
        service = self._service()
        if service is not None and service.members:
            service.fail_process(self.random.choice(service.members))

    async def user_resizes(self) -> None:
        spec = (await self.stage.view()).job["spec"]
        await self.stage.change(replicas=self.random.randint(spec.get("minReplicas", 1), 4))

    async def user_suspends(self) -> None:
        await self.stage.change(suspend=True)

    async def user_resumes(self) -> None:
        await self.stage.change(suspend=False)

    async def user_deletes_the_service(self) -> None:
        self._erase(SERVICES)

    async def user_deletes_a_secret(self) -> None:
        self._erase(SECRETS)

    async def user_deletes_the_policy(self) -> None:
        self._erase(POLICIES)

    async def operator_is_killed(self) -> None:
        index = self.random.randrange(len(self._wires))
        await ended(self.operators[index])
        self.start_operator(index)

    async def clock_jumps(self) -> None:
        """The time of day of both operators."""
        self._jump = timedelta(
            seconds=self.random.uniform(-LONGEST_JUMP_SECONDS, LONGEST_JUMP_SECONDS)
        )

    async def service_is_cut_off(self) -> None:
        self.stage.nodes.cut.add(KEY)

    async def service_is_reached(self) -> None:
        self.stage.nodes.cut.clear()

    async def service_restarts(self) -> None:
        if KEY in self.stage.nodes.services:
            self.stage.nodes.restart_service(KEY)

    async def watches_stand_still(self) -> None:
        self.kube.hold_watches()

    async def watches_go_on(self) -> None:
        self.kube.release_watches()

    async def watches_break(self) -> None:
        self.kube.compact()
        self.kube.break_watches(ApiError(410, "Expired", "too old resource version"))

    async def quota_changes(self) -> None:
        self.kube.quota = self.random.choice([None, None, 1, 2, 3])

    async def nothing(self) -> None:
        """Let time pass."""

    # --- with an effect on the whole life ---------------------------------------------------------

    def start_operator(self, index: int) -> None:
        wire = self._wires[index]
        self.stage.controller, self.operators[index] = self.stage.run_operator(wire)

    def finish(self) -> str:
        """End all commands, well or with the failure of one; return the state that follows."""
        service = self.stage.service()
        if self.random.random() < 0.5:
            service.finish()
            return "Complete"
        worker = self.random.choice(service.members)
        service.finish(Failure(at=0.0, summary="rank 0: boom", rank=0, worker=worker))
        return "Failed"

    async def end_disturbances(self) -> None:
        self.kube.quota = None
        self.kube.release_watches()
        self.stage.nodes.cut.clear()
        await self.stage.change(suspend=False)

    def trains(self) -> bool:
        service = self._service()
        return service is not None and service.report.state is not ServiceState.WAITING

    def _service(self) -> Service | None:
        return self.stage.nodes.services.get(KEY)

    async def _end_worker(self, why: JSON) -> None:
        pod = await self._pick(constants.ROLE_WORKER)
        if pod is not None and pod["status"]["phase"] == "Running":
            status = {**ended_status(pod, 137), **why}
            body = {"apiVersion": "v1", "kind": "Pod", **pod}
            path = self.stage.pod_path(pod["metadata"]["name"])
            await self.stage.nodes.set_status(path, body, status)

    async def _remove(self, role: str, *, vanishes: bool) -> None:
        pod = await self._pick(role)
        if pod is not None:
            await self.stage.delete_pod(pod["metadata"]["name"], vanishes=vanishes)

    async def _pick(self, role: str) -> JSON | None:
        pods = (await self.stage.view()).pods
        names = [
            n
            for n, each in pods.items()
            if each["metadata"]["labels"].get(constants.LABEL_ROLE) == role
        ]
        return pods[self.random.choice(names)] if names else None

    def _erase(self, resource: Resource) -> None:
        found = list(self.kube.objects.all(resource, KEY.namespace, ""))
        if found:
            name = self.random.choice(found)["metadata"]["name"]
            self.kube.objects.delete((resource, KEY.namespace, name), {})
            self.kube.tell()


Happening = Callable[[Happenings], Awaitable[None]]
HAPPENINGS: tuple[Happening, ...] = (
    Happenings.worker_vanishes,
    Happenings.worker_is_deleted,
    Happenings.worker_is_evicted,
    Happenings.worker_ends_by_itself,
    Happenings.process_fails,
    Happenings.process_fails,
    Happenings.rendezvous_vanishes,
    Happenings.user_resizes,
    Happenings.user_suspends,
    Happenings.user_resumes,
    Happenings.user_resumes,
    Happenings.user_deletes_the_service,
    Happenings.user_deletes_a_secret,
    Happenings.user_deletes_the_policy,
    Happenings.operator_is_killed,
    Happenings.clock_jumps,
    Happenings.service_is_cut_off,
    Happenings.service_is_reached,
    Happenings.service_restarts,
    Happenings.watches_stand_still,
    Happenings.watches_go_on,
    Happenings.watches_break,
    Happenings.quota_changes,
    Happenings.nothing,
)
