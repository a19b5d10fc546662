"""Stories of what a job's status keeps of its past."""

from __future__ import annotations

from typing import Any

from ddpjob_operator.rendezvous.session_pool import Key
from support.reconciling.life import training, worker
from support.reconciling.nodes import ended
from support.reconciling.stage import Play, Stage


def test_the_history_outlives_service_and_operator_and_costs_no_write(play: Play) -> None:
    async def story(stage: Stage) -> None:
        view = await training(stage, "000-1", "001-1")
        pod = {"apiVersion": "v1", "kind": "Pod", **view.pods[worker(1)]}
        status = {**ended(pod, 137), "reason": "Evicted", "message": "low on memory"}
        await stage.nodes.set_status(stage.pod_path(worker(1)), pod, status)
        view = await stage.until(lambda v: v.trains("000-1", "001-2"), "it is replaced")
        before = history(view.status)
        assert [(each["cause"], each["worldSize"]) for each in before] == [
            ("started", 2),
            ("lost", 1),
            ("joined", 2),
        ]
        assert before[0]["ended"] == [f"{worker(1)}: Evicted: low on memory"]
        stage.nodes.restart_service(Key(stage.namespace, "digits"))
        await stage.restart_operator()
        await stage.delete_pod(worker(0), vanishes=True)
        view = await stage.until(lambda v: v.trains("000-2", "001-2"), "the next is replaced")
        after = history(view.status)
        assert after[:3] == before
        assert [each["cause"] for each in after[3:]] == ["lost", "joined"]
        await stage.calm()

    play(story)


def history(status: dict[str, Any]) -> list[dict[str, Any]]:
    return list(status["history"])
