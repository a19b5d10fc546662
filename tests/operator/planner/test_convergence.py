"""Whatever dies, and whenever: the job arrives where the user wants it, and stays there."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ddpjob_operator.planner.observed import Phase
from ddpjob_operator.planner.status import conditions
from ddpjob_protocol.messages.control import ServiceState
from support.world import World

PICK = st.integers(0, 30)
KEPT = {
    "All": frozenset({Phase.SUCCEEDED, Phase.FAILED}),
    "Failed": frozenset({Phase.FAILED}),
    "Never": frozenset[Phase](),
}


def assert_as_wanted(world: World) -> None:
    """Exactly the wanted workers are there, and they train together."""
    spec = world.job().spec
    finished = conditions.finished(world.status.conditions)
    if finished or spec.paused:
        kept = KEPT[spec.keep_pods] if finished else frozenset()
        assert {pod.phase for pod in world.pods.values()} <= kept
        assert not any(pod.deleting for pod in world.pods.values())
        assert world.service is None
        return
    assert world.service
    wanted = {group.name: group.replicas for group in spec.groups() if group.replicas}
    assert Counter(pod.group for pod in world.pods.values()) == wanted
    slots = {(pod.group, pod.index) for pod in world.pods.values()}
    assert len(slots) == len(world.pods)
    assert world.service is not None
    assert world.service.membership is not None
    assert world.service.state is ServiceState.RUNNING
    assert {m.worker for m in world.service.membership.members} == set(world.pods)
    assert world.status.state == "Running"
    assert world.status.membership is not None
    assert world.status.membership.id == str(world.service.membership.id)


class Disturbed(RuleBasedStateMachine):
    """Operator, cluster, training and user act in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.term = 0

    @rule(writes=st.integers(0, 12), status_first=st.booleans())
    def operator_passes_and_is_killed(self, writes: int, status_first: bool) -> None:
        self.world.reconcile(writes, status_first)

    @rule()
    def operator_passes(self) -> None:
        self.world.reconcile()

    @rule(times=st.integers(1, 3))
    def time_passes(self, times: int) -> None:
        for _ in range(times):
            self.world.reconcile()
            self.world.tick()

    @rule()
    def only_the_cluster_acts(self) -> None:
        self.world.tick()

    @rule(pick=PICK, phase=st.sampled_from([Phase.FAILED, Phase.SUCCEEDED]))
    def worker_ends(self, pick: int, phase: Phase) -> None:
        # No agent ends with 0 while its service does not say that the job is complete, so a
        # single worker that does is the most that a world without such a service may show.
        self._change(pick, phase=phase)

    @rule(pick=PICK)
    def worker_vanishes_with_its_node(self, pick: int) -> None:
        if self.world.pods:
            del self.world.pods[self._name(pick)]

    @rule(pick=PICK, stuck=st.booleans())
    def worker_is_deleted_by_somebody(self, pick: int, stuck: bool) -> None:
        if self.world.pods:
            self._change(pick, deleting=True)
            if stuck:
                self.world.stuck.add(self._name(pick))

    @rule()
    def rendezvous_is_lost(self) -> None:
        self.world.service = None

    @rule()
    def address_is_lost(self) -> None:
        self.world.has_service_object = False

    @rule(quota=st.none() | st.integers(0, 6))
    def quota_changes(self, quota: int | None) -> None:
        self.world.quota = quota

    @rule(capacity=st.integers(0, 6))
    def cluster_changes_size(self, capacity: int) -> None:
        self.world.capacity = capacity

    @rule(replicas=st.integers(0, 5), spot=st.sampled_from([None, 0, 1, 3]))
    def user_resizes(self, replicas: int, spot: int | None) -> None:
        groups = [] if spot is None else [{"name": "spot", "replicas": spot}]
        self.world.change(replicas=replicas, extraWorkerGroups=groups)

    @rule(suspend=st.booleans())
    def user_suspends(self, suspend: bool) -> None:
        self.world.change(suspend=suspend)

    @rule(keep=st.sampled_from(["All", "Failed", "Never"]))
    def user_keeps_pods(self, keep: str) -> None:
        self.world.change(keepPods=keep)

    @rule(state=st.sampled_from([ServiceState.COMPLETE, ServiceState.FAILED]))
    def training_ends(self, state: ServiceState) -> None:
        self.world.finish(state)

    @invariant()
    def epochs_only_grow(self) -> None:
        assert self.world.status.rendezvous_term >= self.term
        self.term = self.world.status.rendezvous_term

    def teardown(self) -> None:
        self.world.converge()
        assert_as_wanted(self.world)
        finished = conditions.finished(self.world.status.conditions)
        if finished:
            self.world.change(suspend=False, replicas=5)
            self.world.converge()
            assert conditions.finished(self.world.status.conditions)
            assert_as_wanted(self.world)

    def _name(self, pick: int) -> str:
        return sorted(self.world.pods)[pick % len(self.world.pods)]

    def _change(self, pick: int, **fields: Any) -> None:
        if self.world.pods:
            name = self._name(pick)
            self.world.pods[name] = dataclasses.replace(self.world.pods[name], **fields)


TestDisturbed = Disturbed.TestCase
TestDisturbed.settings = settings(max_examples=200, stateful_step_count=40)


SIZES = {"grown": 5, "paused": 0, "resumed": 3, "shrunk": 2}


EVENTS = ("started", *SIZES, "worker lost", "service lost", "address lost", "refused")
PASSES = [event if n == 0 else "" for event in EVENTS for n in range(8)]


def play_pass(world: World, event: str, die_after: int | None = None) -> None:
    """Let an event happen, and the operator pass once; it may die after so many writes in all."""
    if event in SIZES:
        world.change(replicas=SIZES[event])
    elif event == "worker lost":
        world.pods.pop("digits-worker-001-1", None)
    elif event == "service lost":
        world.service = None
    elif event == "address lost":
        world.has_service_object = False
    elif event == "refused":
        world.quota = 1
        world.pods.clear()
    left = (die_after or 0) - world.writes
    world.reconcile(left if left > 0 else 1000)
    world.tick()


def scripted() -> list[World]:
    """Live through everything undisturbed; return the world before each pass, and the last one."""
    worlds = [World()]
    for event in PASSES:
        worlds.append(copy.deepcopy(worlds[-1]))
        play_pass(worlds[-1], event)
    return worlds


WORLDS = scripted()
UNDISTURBED = WORLDS[-1]


@pytest.mark.parametrize("die_after", range(1, UNDISTURBED.writes + 1), ids="after_write_{}".format)
def test_operator_may_die_after_every_single_write(die_after: int) -> None:
    """Up to that pass, its life is the undisturbed one."""
    first = max(n for n, world in enumerate(WORLDS) if world.writes < die_after)
    world = copy.deepcopy(WORLDS[first])
    for event in PASSES[first:]:
        play_pass(world, event, die_after)
    assert world.writes >= die_after, "the operator did not die"
    world.converge()
    assert_as_wanted(world)
    assert sorted(pod.index for pod in world.pods.values()) == [0, 1]


def test_an_undisturbed_script_has_everything_in_it() -> None:
    assert UNDISTURBED.status.rendezvous_term == 3  # started, resumed, service lost
    assert len(UNDISTURBED.formed) == 5  # started, grown, resumed, shrunk, a worker replaced
    assert UNDISTURBED.status.state == "Stalled"  # all workers refused


def test_completion_survives_the_loss_of_the_service_that_knew_it() -> None:
    world = World()
    world.converge()
    world.finish(ServiceState.COMPLETE)
    world.service = None
    world.converge()
    assert world.status.state == "Complete"


def test_undisturbed_start_takes_few_passes() -> None:
    assert World().converge() <= 6


@pytest.mark.parametrize("state", [ServiceState.COMPLETE, ServiceState.FAILED])
@pytest.mark.parametrize("die_after", range(8), ids="after_write_{}".format)
def test_an_end_that_was_reported_is_not_forgotten(die_after: int, state: ServiceState) -> None:
    world = World()
    world.converge()
    world.finish(state)
    world.reconcile(die_after)
    world.reconcile(max(1, die_after - 1))
    world.tick()
    world.converge()
    assert world.status.state == state
    assert_as_wanted(world)
