"""What does not answer is observed: status says so, and what is lost is replaced."""

from __future__ import annotations

import pytest

from ddpjob_operator.rendezvous.session_pool import Key

pytest.register_assert_rewrite("support.reconciling.life")

from support.reconciling.in_memory import play_in_memory  # noqa: E402
from support.reconciling.life import training  # noqa: E402
from support.reconciling.stage import Stage  # noqa: E402


def key(stage: Stage) -> Key:
    return Key(stage.namespace, "digits")


def test_an_operator_that_is_cut_from_a_running_job_says_that_it_does_not_know() -> None:
    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        cut_at = stage.clock()
        stage.nodes.cut.add(key(stage))
        view = await stage.until(
            lambda v: v.condition("Running")["status"] == "Unknown", "the report expires"
        )
        assert stage.clock() - cut_at < 30
        assert view.is_stalled("ServiceUnreachable")
        assert view.state == "Stalled"
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "the job is observed again")
        assert (await stage.calm()).uids() == before.uids()
        assert await stage.reasons() == ["ServiceUnreachable", "Started"]

    play_in_memory(story)


def test_an_operator_that_never_reaches_a_service_says_so() -> None:
    async def story(stage: Stage) -> None:
        stage.nodes.cut.add(key(stage))
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("ServiceUnreachable"), "it is in status")
        message = view.condition("Stalled")["message"]
        assert "no answer in time" in message
        assert "network policies" in message
        assert view.condition("Running")["message"].endswith(": no answer in time")
        stage.nodes.cut.clear()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")
        assert await stage.reasons() == ["ServiceUnreachable", "Started"]

    play_in_memory(story)
