"""A job whose cluster, user and API server do anything in any order, under two operators at once.

One of the operators is an old leader that does not know it: both plan and write.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import ServiceState
from support.fake_kube import Target
from support.fake_objects import JOBS, JSON, PODS
from support.reconciling.faults import FaultyWire
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.nodes import ended as ended_status
from support.reconciling.stage import Stage, ended
from support.reconciling.view import View

JOB = "digits"
TERMINAL = ("Succeeded", "Failed")
FAULT_RATE = 0.15
TURN_SECONDS = 3.0
LONGEST_CALM_SECONDS = 25.0
# Requests under way meet a later state, writes may fail for a while, and a silent watch
# is noticed after 70 s only. The longest of 200 seeds with 50 steps took between 180 and 240 s.
LONGEST_WRONG_SECONDS = 240.0
UNDER_WAY_SECONDS = 30.0  # of the requests of one pass


class WatchfulKube(CheckingKube):
    """Notes each pod that a job keeps after its end and that an operator deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []
        self._over_at: float | None = None

    def _answer(self, method: str, target: Target, query: Mapping[str, str], body: JSON) -> JSON:
        before = None
        if method == "DELETE" and target.resource is PODS and "preconditions" in (body or {}):
            before = self.pods().get(str(target.name))
        answer = super()._answer(method, target, query, body)
        if self._over_at is None and method == "PUT" and target.resource is JOBS:
            over = answer.get("status", {}).get("state") in ("Complete", "Failed")
            self._over_at = asyncio.get_running_loop().time() if over else None
        if before is not None and self._is_kept(before):
            self.violations.append(f"the kept pod {target.name} was deleted")
        return answer

    def _is_kept(self, pod: JSON) -> bool:
        """Return whether no request that was under way at the job's end may delete the pod."""
        if self._over_at is None or pod["status"]["phase"] not in TERMINAL:
            return False
        role = pod["metadata"]["labels"].get(constants.LABEL_ROLE)
        now = asyncio.get_running_loop().time()
        return role == constants.ROLE_WORKER and now > self._over_at + UNDER_WAY_SECONDS


class Simulation:
    """One job's life, chosen by a seed."""

    def __init__(self, stage: Stage, kube: WatchfulKube, random: Random) -> None:
        self.stage = stage
        self.steps = 0
        self._kube = kube
        self._random = random
        self._wires = [FaultyWire(kube, random), FaultyWire(kube, random)]
        self._operators: list[list[asyncio.Task[None]]] = [[], []]
        self._since: dict[str, float] = {}

    async def live(self, steps: int) -> None:
        """Start the job, disturb it `steps` times, and check that it trains and ends well."""
        stage = self.stage
        await stage.stop_operator()
        for index in range(2):
            self._start(index)
        try:
            await self._live(steps)
        finally:
            for tasks in self._operators:
                await ended(tasks)
            await stage.start_operator()

    async def _live(self, steps: int) -> None:
        stage = self.stage
        await stage.create(replicas=2, keepPods="All")
        for wire in self._wires:
            wire.rate = FAULT_RATE
        for _ in range(steps):
            await self._random.choice(ACTIONS)(self)
            self.steps += 1
            await self._pass(self._random.uniform(0, LONGEST_CALM_SECONDS))
        await self._end_disturbances()
        await self._until(self._is_whole, "the job trains again")
        for wire in self._wires:
            wire.rate = FAULT_RATE
        stage.service().finish()
        await self._until(
            lambda view: view.state == "Complete" and not view.rendezvous, "the job is complete"
        )
        await self._pass(2 * UNDER_WAY_SECONDS)
        kept = (await stage.view()).workers
        await asyncio.sleep(700)  # a late list repairs what a watch missed
        self._check(await stage.view())
        assert (await stage.view()).workers == kept, "a kept pod was deleted"

    # --- what happens -----------------------------------------------------------------------------

    async def worker_vanishes(self) -> None:
        await self._remove(constants.ROLE_WORKER, vanishes=True)

    async def worker_is_deleted(self) -> None:
        await self._remove(constants.ROLE_WORKER, vanishes=False)

    async def rendezvous_vanishes(self) -> None:
        await self._remove(constants.ROLE_RENDEZVOUS, vanishes=self._random.random() < 0.5)

    async def worker_is_evicted(self) -> None:
        pod = await self._pick(constants.ROLE_WORKER)
        if pod is not None and pod["status"]["phase"] == "Running":
            status = {**ended_status(pod, 137), "reason": "Evicted", "message": "node pressure"}
            body = {"apiVersion": "v1", "kind": "Pod", **pod}
            await self.stage.nodes.set_status(
                self.stage.pod_path(pod["metadata"]["name"]), body, status
            )

    async def user_resizes(self) -> None:
        await self.stage.change(replicas=self._random.randint(1, 4))

    async def user_suspends(self) -> None:
        await self.stage.change(suspend=True)

    async def user_resumes(self) -> None:
        await self.stage.change(suspend=False)

    async def operator_is_killed(self) -> None:
        index = self._random.randrange(2)
        await ended(self._operators[index])
        self._start(index)

    async def service_is_cut_off(self) -> None:
        self.stage.nodes.cut.add(Key("default", JOB))

    async def service_is_reached(self) -> None:
        self.stage.nodes.cut.clear()

    async def service_restarts(self) -> None:
        key = Key("default", JOB)
        if key in self.stage.nodes.services:
            self.stage.nodes.restart_service(key)

    async def watches_stand_still(self) -> None:
        self._kube.hold_watches()

    async def watches_go_on(self) -> None:
        self._kube.release_watches()

    async def watches_break(self) -> None:
        self._kube.compact()
        self._kube.break_watches(ApiError(410, "Expired", "too old resource version"))

    async def quota_changes(self) -> None:
        self._kube.quota = self._random.choice([None, None, 1, 2, 3])

    async def nothing(self) -> None:
        """Let time pass."""

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
        return pods[self._random.choice(names)] if names else None

    def _start(self, index: int) -> None:
        self.stage.controller, self._operators[index] = self.stage.run_operator(self._wires[index])

    async def _end_disturbances(self) -> None:
        for wire in self._wires:
            wire.rate = 0.0
        self._kube.quota = None
        self._kube.release_watches()
        self.stage.nodes.cut.clear()
        await self.stage.change(suspend=False)

    # --- what must hold ---------------------------------------------------------------------------

    async def _pass(self, seconds: float) -> None:
        end = self.stage.clock() + seconds
        while self.stage.clock() < end:
            await self._turn()

    async def _until(self, holds: Callable[[View], bool], what: str) -> None:
        end = self.stage.clock() + self.stage.patience
        while not holds(view := await self.stage.view()):
            assert self.stage.clock() < end, f"never: {what}\n{view.status}\n{view.phases()}"
            await self._turn()

    async def _turn(self) -> None:
        for task in [task for tasks in self._operators for task in tasks if task.done()]:
            await task
        await self.stage.nodes.turn()
        self._check(await self.stage.view())
        await asyncio.sleep(TURN_SECONDS)

    def _check(self, view: View) -> None:
        assert self._kube.violations == []
        pods = [p for n, p in view.pods.items() if n in view.workers and self._is_live(p)]
        slots = Counter(_slot(pod) for pod in pods)
        self._forbid("two pods of one slot", max(slots.values(), default=0) > 1, view)
        wrong = view.state == "Running" and not self._trains()
        self._forbid("Running without training", wrong, view)
        members = Counter(name.rpartition("-")[0] for name in view.members)
        twice = view.state == "Running" and max(members.values(), default=0) > 1
        self._forbid("two members of one slot", twice, view)

    def _forbid(self, what: str, is_so: bool, view: View) -> None:
        """Raise if something that may only be so for a while lasts."""
        if not is_so:
            self._since.pop(what, None)
            return
        since = self._since.setdefault(what, self.stage.clock())
        lasts = self.stage.clock() - since
        assert lasts < LONGEST_WRONG_SECONDS, f"{what}: {view.phases()} {view.status}"

    def _trains(self) -> bool:
        service = self.stage.nodes.services.get(Key("default", JOB))
        return service is not None and service.report.state is not ServiceState.WAITING

    def _is_live(self, pod: JSON) -> bool:
        return pod["status"]["phase"] not in TERMINAL and "deletionTimestamp" not in pod["metadata"]

    def _is_whole(self, view: View) -> bool:
        wanted = view.job["spec"]["replicas"]
        return (
            view.state == "Running"
            and sorted(view.members) == view.workers
            and len(view.workers) == wanted
            and len(view.rendezvous) == 1
            and self._trains()
        )


def _slot(pod: JSON) -> tuple[Any, ...]:
    labels = pod["metadata"]["labels"]
    return labels[constants.LABEL_GROUP], labels[constants.LABEL_INDEX]


ACTIONS = (
    Simulation.worker_vanishes,
    Simulation.worker_is_deleted,
    Simulation.worker_is_evicted,
    Simulation.rendezvous_vanishes,
    Simulation.user_resizes,
    Simulation.user_suspends,
    Simulation.user_resumes,
    Simulation.user_resumes,
    Simulation.operator_is_killed,
    Simulation.service_is_cut_off,
    Simulation.service_is_reached,
    Simulation.service_restarts,
    Simulation.watches_stand_still,
    Simulation.watches_go_on,
    Simulation.watches_break,
    Simulation.quota_changes,
    Simulation.nothing,
)


def simulate(seed: int, steps: int) -> None:
    """Live one life in memory, in fake time."""
    kube = WatchfulKube()

    async def story(stage: Stage) -> None:
        await Simulation(stage, kube, Random(seed)).live(steps)

    own = random.getstate()
    random.seed(seed)  # pauses of the operators vary at random
    try:
        play_in_memory(story, kube)
    finally:
        random.setstate(own)
