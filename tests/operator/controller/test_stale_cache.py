"""What a watch has not told: the operator acts on nothing that it has not read from the API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ddpjob_operator.kube.interface import ApiError
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import RENDEZVOUS, training, worker
from support.reconciling.stage import Stage

JSON = dict[str, Any]
QUOTA_CONFLICT = ApiError(
    409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "few": it has been modified'
)


def losing(kube: CheckingKube, name: str, kind: str, **status: Any) -> None:
    """Lose the events of a kind of this pod, from now on."""

    def lose(event: JSON) -> bool:
        obj = event["object"]
        is_it = event["type"] == kind and obj["metadata"]["name"] == name
        return bool(is_it and status.items() <= obj.get("status", {}).items())

    kube.lose_event = lose


def test_a_kept_pod_whose_end_was_not_told_is_not_deleted() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", keepPods="All")
        losing(kube, worker(1), "MODIFIED", phase="Succeeded")
        stage.service().finish()
        await stage.until(lambda v: v.state == "Complete" and not v.rendezvous, "it has ended")
        await asyncio.sleep(60)
        view = await stage.calm()
        assert view.phases() == {worker(0): "Succeeded", worker(1): "Succeeded"}

    play_in_memory(story, kube)


def test_a_rendezvous_pod_of_an_earlier_term_that_comes_late_is_deleted() -> None:
    """The creation of an operator that has lost the Lease may arrive late."""
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        before = await training(stage, "000-1", "001-1")
        late = before.pods[RENDEZVOUS]
        await stage.delete_pod(RENDEZVOUS, vanishes=True)
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains in the next term")
        for field in ("uid", "resourceVersion", "creationTimestamp", "generation"):
            del late["metadata"][field]
        kube.add({"apiVersion": "v1", "kind": "Pod", **late, "status": {"phase": "Running"}})
        await stage.until(lambda v: RENDEZVOUS not in v.pods, "the late pod is deleted")
        assert (await stage.calm()).rendezvous == ["digits-rendezvous-2"]

    play_in_memory(story, kube)


@pytest.mark.parametrize("plural", ["pods", "secrets", "services"])
def test_a_conflict_at_a_quota_is_no_object_that_exists(plural: str) -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        kube.refuse("POST", plural, QUOTA_CONFLICT)
        await stage.create(replicas=2)
        view = await stage.until(lambda v: v.is_stalled("ApiServerFails"), "it is in the status")
        assert "resourcequotas" in view.condition("Stalled")["message"]
        kube.allow()
        await stage.until(lambda v: v.trains("000-1", "001-1"), "it trains")

    play_in_memory(story, kube)
