"""Stories of how jobs end, and of what is left of them."""

from __future__ import annotations

import pytest

from ddpjob_protocol.messages.agent import Failure
from support.reconciling.life import training, worker
from support.reconciling.stage import Play, Stage
from support.reconciling.wire import Call

FAILURE = Failure(
    at=0.0, summary="rank 1 failed: ValueError: bad", traceback="Traceback: bad", rank=1
)


@pytest.mark.parametrize(
    ("keep", "failure", "left"),
    [
        ("Never", None, 0),
        ("Failed", None, 0),
        ("All", None, 2),
        ("Never", FAILURE, 0),
        ("Failed", FAILURE, 2),
        ("All", FAILURE, 2),
    ],
    ids=lambda value: "failed" if isinstance(value, Failure) else str(value or "completed"),
)
def test_an_ended_job_is_told_of_and_cleaned_up(
    play: Play, keep: str, failure: Failure | None, left: int
) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", keepPods=keep)
        stage.service().finish(failure)
        end = "Complete" if failure is None else "Failed"
        await stage.until(lambda v: v.state == end and not v.rendezvous, "the end")
        await stage.until(lambda v: len(v.workers) == left, "only what is kept stays")
        view = await stage.calm()
        assert view.workers == [worker(0), worker(1)][:left]
        assert set(view.phases().values()) <= {"Failed" if failure else "Succeeded"}
        assert view.condition(end)["status"] == "True"
        assert view.status["completionTime"]
        if failure is not None:
            assert "Traceback: bad" in view.condition("Failed")["message"]
        assert await stage.reasons() == sorted(["Started", "Failed" if failure else "Completed"])

    play(story)


def test_an_ended_job_does_not_begin_again(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete" and not view.pods, "the end")
        await stage.change(replicas=3)
        view = await stage.until(
            lambda v: v.status["observedGeneration"] == v.job["metadata"]["generation"], "seen"
        )
        assert (view.state, (await stage.calm()).pods) == ("Complete", {})

    play(story)


def test_a_finished_job_is_deleted_after_its_time(play: Play) -> None:
    """Also by an operator that starts later, and not while the time may still be changed."""

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", ttlSecondsAfterFinished=3600)
        stage.service().finish()
        await stage.until(lambda view: view.state == "Complete" and not view.pods, "the end")
        await stage.calm()
        await stage.stop_operator()
        await stage.change(ttlSecondsAfterFinished=0)
        await stage.start_operator()
        await stage.until(lambda view: not view.status, "it is deleted")
        [deletion] = [call for call in stage.wire.calls if call.kind == "DELETE ddpjobs"]
        assert deletion.body is not None
        assert set(deletion.body["preconditions"]) == {"uid", "resourceVersion"}

    play(story)


def test_a_job_that_changes_meanwhile_is_not_deleted(play: Play) -> None:
    async def story(stage: Stage) -> None:
        changed = False

        async def extend(call: Call) -> None:
            nonlocal changed
            if call.kind == "DELETE ddpjobs" and not changed:
                changed = True
                await stage.change(ttlSecondsAfterFinished=3600)

        stage.wire.before = extend
        await training(stage, "000-1", "001-1", ttlSecondsAfterFinished=0)
        stage.service().finish()
        await stage.until(lambda view: changed and not view.pods, "the end")
        view = await stage.calm()
        assert (view.state, view.job["spec"]["ttlSecondsAfterFinished"]) == ("Complete", 3600)

    play(story)


def test_a_deleted_job_leaves_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        assert stage.metric("ddpjob_jobs", state="Running") == 1
        await stage.delete()
        await stage.until(lambda view: not view.pods and not view.services, "all is gone")
        assert (await stage.calm()).pods == {}
        assert stage.metric("ddpjob_jobs", state="Running") == 0
        assert "Deleted" not in await stage.reasons()

    play(story)


def test_a_job_of_the_same_name_waits_for_the_pods_of_the_first(play: Play) -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        stage.nodes.silent = {worker(0)}
        await stage.delete()
        await stage.create()
        view = await stage.until(lambda view: view.is_stalled("NameTaken"), "it waits")
        assert "of an earlier job of this name" in view.condition("Stalled")["message"]
        stage.nodes.silent = set()
        after = await stage.until(lambda view: view.trains("000-1", "001-1"), "it runs")
        assert not set(before.uids().values()) & set(after.uids().values())

    play(story)
