"""The operator is killed after every single write, and loses every single event of its watches.

Guarantee: nothing in the operator remembers what it could observe. Whenever it dies, the next one
brings the job to the same end; what a watch did not tell, a list tells later.

An undisturbed life is lived first: it shows how many writes and events there are to disturb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ddpjob_operator.api import constants
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.stage import Stage
from support.reconciling.view import View

JSON = dict[str, Any]
TIMES = {"lastTransitionTime", "startTime", "completionTime", "since"}
MEMBERSHIPS = ("Started", "WorkerLost", "WorkerJoined", "WorkerLeft")


async def life(stage: Stage) -> list[JSON]:
    """Start, loss of a worker, of the rendezvous pod, growth, shrinking, the end; what was so then."""
    chapters = []
    begin = stage.now()
    stage.now = lambda: (
        begin
    )  # a lost event may cost minutes; what is late then is not the question

    async def until(condition: Callable[[View], object], what: str) -> None:
        view = await stage.until(condition, what)
        chapters.append(summary(view))

    await stage.create(replicas=3, keepPods="All")
    await until(lambda view: view.trains("000-1", "001-1", "002-1"), "it runs")
    await stage.delete_pod("digits-worker-001-1", vanishes=True)
    await until(lambda view: view.trains("000-1", "001-2", "002-1"), "a worker is replaced")
    await stage.delete_pod("digits-rendezvous-1", vanishes=True)
    await until(
        lambda v: v.status["observedRendezvousTerm"] == 2 and v.state == "Running", "term 2"
    )
    await stage.change(replicas=4)
    await until(lambda v: v.trains("000-1", "001-2", "002-1", "003-1"), "grown")
    await stage.change(replicas=2)
    await until(lambda view: view.trains("000-1", "001-2"), "shrunk")
    stage.service().finish()
    await until(lambda view: view.state == "Complete" and not view.rendezvous, "the end")
    return chapters


def summary(view: View) -> JSON:
    """What must be the same, whatever happened on the way."""
    return {
        "pods": {n: pod["status"]["phase"] for n, pod in view.pods.items()},
        "services": view.services,
        "status": timeless(view.status),
    }


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


class Life(NamedTuple):
    """The end of a life, the job's Kubernetes events, and how much was written and watched."""

    end: JSON
    told: list[str]
    writes: int
    watched: int


def live_undisturbed() -> Life:
    found: list[Life] = []
    kube = CheckingKube()
    watched = 0

    def count(event: JSON) -> bool:
        nonlocal watched
        watched += is_ours(event)
        return False

    kube.lose_event = count

    async def story(stage: Stage) -> None:
        [*_, end] = await life(stage)
        await stage.calm()
        found.append(Life(end, await stage.events(), stage.wire.writes, watched))

    play_in_memory(story, kube)
    return found[0]


def is_ours(event: JSON) -> bool:
    """Whether it is an event of a reflector: kopf's own watch is not ours to heal."""
    return bool(event["object"].get("kind") != constants.KIND)


UNDISTURBED = live_undisturbed()


def test_an_undisturbed_life_has_every_kind_of_change() -> None:
    reasons = sorted(event.partition(":")[0] for event in UNDISTURBED.told)
    assert reasons == sorted([*MEMBERSHIPS, "WorkerJoined", "WorkerReplaced", "Completed"])


@pytest.mark.parametrize("writes", range(1, UNDISTURBED.writes + 1), ids="after_write_{}".format)
def test_an_operator_may_be_killed_after_every_single_write(writes: int) -> None:
    async def story(stage: Stage) -> None:
        stage.wire.die_after = writes
        [*_, end] = await life(stage)
        await stage.calm()
        assert stage.wire.writes >= writes, "the operator was not killed"
        assert end == UNDISTURBED.end
        assert_told_at_most_once(await stage.events(), UNDISTURBED.told)

    play_in_memory(story)


def assert_told_at_most_once(told: list[str], expected: list[str]) -> None:
    """Events come after the status that shows them: a death in between costs those of one pass."""
    missing = set(expected) - set(told)
    assert len(told) == len(set(told))
    assert len(missing) <= 2, missing


@pytest.mark.parametrize("lost", range(1, UNDISTURBED.watched + 1), ids="event_{}".format)
def test_every_event_of_a_watch_may_be_lost(lost: int) -> None:
    kube = CheckingKube()
    seen = 0

    def lose(event: JSON) -> bool:
        nonlocal seen
        seen += is_ours(event)
        return is_ours(event) and seen == lost

    kube.lose_event = lose

    async def story(stage: Stage) -> None:
        [*_, end] = await life(stage)
        assert end == UNDISTURBED.end

    play_in_memory(story, kube)
    assert seen >= lost, "no event was lost"
