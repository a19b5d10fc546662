"""A job whose cluster, user and API server do anything in any order, under two operators at once.

One of the operators is an old leader that does not know it: both plan and write. A web page follows
the jobs meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.controller.web.copies import JobCopies
from support.fake_kube import Target
from support.fake_objects import JOBS, JSON, PODS
from support.reconciling.faults import FaultyWire
from support.reconciling.happenings import HAPPENINGS, KEY, Happening, Happenings
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.policies import OPERATOR_PODS
from support.reconciling.stage import Stage, ended
from support.reconciling.view import View

TERMINAL = ("Succeeded", "Failed")
FAULT_RATE = 0.15
TURN_SECONDS = 3.0
LONGEST_CALM_SECONDS = 25.0
# Requests under way meet a later state, writes may fail for a while, and a silent watch
# is noticed after 70 s only. The longest of 200 seeds with 50 steps took between 180 and 240 s.
LONGEST_WRONG_SECONDS = 240.0
UNDER_WAY_SECONDS = 30.0  # of the requests of one pass
BUDGET = {"application": 1000}  # for any number of failures
SPECS: tuple[Mapping[str, Any], ...] = (
    {"failurePolicy": {"maxRestarts": BUDGET}},
    {"failurePolicy": {"maxRestarts": BUDGET, "avoidNodes": 1}},
    {"failurePolicy": {"maxRestarts": BUDGET, "avoidNodes": 2}, "minReplicas": 2},
)


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
        self.happened: Counter[str] = Counter()
        self._kube = kube
        self._random = random
        self._wires = [FaultyWire(kube, random, self.happened) for _ in range(2)]
        self._world = Happenings(stage, kube, random, *self._wires)
        self._web_wire = FaultyWire(kube, random, self.happened)
        self._since: dict[str, float] = {}

    async def live(self, steps: int) -> None:
        """Start the job, disturb it `steps` times, and check that it trains and ends well."""
        stage, copies = self.stage, JobCopies(self._web_wire, [""])
        stage.operator_pods = OPERATOR_PODS
        await stage.stop_operator()
        for index in range(2):
            self._world.start_operator(index)
        try:
            async with copies.following():
                await self._live(steps, copies)
        finally:
            for tasks in self._world.operators:
                await ended(tasks)
            await stage.start_operator()

    async def _live(self, steps: int, copies: JobCopies) -> None:
        stage = self.stage
        await stage.create(replicas=2, keepPods="All", **self._random.choice(SPECS))
        self._disturb(FAULT_RATE)
        drawn: list[Happening] = []
        for _ in range(steps):
            drawn = drawn or self._random.sample(HAPPENINGS, len(HAPPENINGS))
            happening = drawn.pop()
            self.happened[name_of(happening)] += 1
            await happening(self._world)
            await self._pass(self._random.uniform(0, LONGEST_CALM_SECONDS))
        self._disturb(0.0)
        await self._world.end_disturbances()
        await self._until(self._is_whole, "the job trains again")
        self._disturb(FAULT_RATE)
        end = self._world.finish()
        self.happened[end] += 1
        await self._until(lambda view: view.state == end and not view.rendezvous, f"it is {end}")
        await self._pass(2 * UNDER_WAY_SECONDS)
        kept = (await stage.view()).workers
        await asyncio.sleep(700)  # a late list repairs what a watch missed
        self._check(await stage.view())
        assert (await stage.view()).workers == kept, "a kept pod was deleted"
        copy = copies.get(*KEY)
        assert copy is not None
        assert copy.line.state == end, "the web page has another state"

    def _disturb(self, rate: float) -> None:
        for wire in (*self._wires, self._web_wire):
            wire.rate = rate

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
        for task in [task for tasks in self._world.operators for task in tasks if task.done()]:
            await task
        await self.stage.nodes.turn()
        self._check(await self.stage.view())
        await asyncio.sleep(TURN_SECONDS)

    def _check(self, view: View) -> None:
        assert self._kube.violations == []
        moving = {
            name for node in view.status.get("nodeFailures", ()) for name in node.get("workers", ())
        }
        pods = [
            pod for name, pod in view.pods.items()
            if name in view.workers and name not in moving and self._is_live(pod)
        ]  # fmt: skip
        slots = Counter(_slot(pod) for pod in pods)
        self._forbid("two pods of one slot", max(slots.values(), default=0) > 1, view)
        wrong = view.state == "Running" and not self._world.trains()
        self._forbid("Running without training", wrong, view)
        members = Counter(name.rpartition("-")[0] for name in view.members if name not in moving)
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

    def _is_live(self, pod: JSON) -> bool:
        return pod["status"]["phase"] not in TERMINAL and "deletionTimestamp" not in pod["metadata"]

    def _is_whole(self, view: View) -> bool:
        wanted = view.job["spec"]["replicas"]
        return (
            view.state == "Running"
            and sorted(view.members) == view.workers
            and len(view.workers) == wanted
            and len(view.rendezvous) == 1
            and self._world.trains()
        )


def _slot(pod: JSON) -> tuple[Any, ...]:
    labels = pod["metadata"]["labels"]
    return labels[constants.LABEL_GROUP], labels[constants.LABEL_INDEX]


def name_of(happening: Happening) -> str:
    """The name by which a life counts it."""
    name: str = happening.__name__
    return name


@functools.cache
def simulate(seed: int, steps: int) -> Counter[str]:
    """Live one life in memory, in fake time; return how often each trouble was part of it."""
    kube = WatchfulKube()
    lives: list[Simulation] = []

    async def story(stage: Stage) -> None:
        lives.append(Simulation(stage, kube, Random(seed)))
        await lives[0].live(steps)

    own = random.getstate()
    random.seed(seed)  # pauses of the operators vary at random
    try:
        play_in_memory(story, kube)
    finally:
        random.setstate(own)
    return lives[0].happened
