"""Stories of the NetworkPolicy that each job gets."""

from __future__ import annotations

from typing import Any

from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.manifests.network_policy import OperatorPods
from ddpjob_operator.request import Request
from support.reconciling.life import training
from support.reconciling.stage import Play, Stage
from support.reconciling.wire import Call

OPERATOR_PODS = OperatorPods("ddpjob-system", {"app.kubernetes.io/name": "ddpjob-operator"})
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
NAME = "digits-pods"
CREATION = "POST networkpolicies"


async def switch_policies_on(stage: Stage) -> str:
    """The operator makes policies from now on; return the path of the namespace's."""
    stage.operator_pods = OPERATOR_PODS
    await stage.restart_operator()
    return POLICIES.format(stage.namespace)


async def policies(stage: Stage) -> list[dict[str, Any]]:
    listed = await stage.kube.send(Request("GET", POLICIES.format(stage.namespace)))
    return list(listed["items"])


def warnings(status: dict[str, Any]) -> list[str]:
    return [each["reason"] for each in status.get("warnings", ())]


def test_a_job_is_closed_before_it_has_a_pod_and_stays_closed(play: Play) -> None:
    async def story(stage: Stage) -> None:
        path = await switch_policies_on(stage)
        view = await training(stage, "000-1", "001-1")
        kinds = [call.kind for call in stage.wire.calls]
        assert kinds.index(CREATION) < kinds.index("POST pods")
        [policy] = await policies(stage)
        assert policy["metadata"]["name"] == NAME
        assert policy["metadata"]["ownerReferences"][0]["uid"] == view.job["metadata"]["uid"]
        await stage.kube.send(Request("DELETE", f"{path}/{NAME}"))

        async def made_again() -> bool:
            return [each["metadata"]["name"] for each in await policies(stage)] == [NAME]

        await stage.wait(made_again, "the policy is there again")
        await stage.calm()
        assert stage.wire.counts()[CREATION] == 2
        assert await stage.reasons() == ["Started"]

    play(story)


def test_a_policy_whose_creation_was_not_answered_is_adopted(play: Play) -> None:
    async def story(stage: Stage) -> None:
        path = await switch_policies_on(stage)

        async def create_first(call: Call) -> None:
            if call.kind == CREATION and not await policies(stage):
                await stage.kube.send(Request("POST", path, body=call.body))

        stage.wire.before = create_first
        view = await training(stage, "000-1", "001-1")
        assert warnings(view.status) == []
        assert stage.wire.counts()[CREATION] == 1

    play(story)


def test_a_policy_that_is_refused_is_told_of_and_delays_no_pod(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await switch_policies_on(stage)

        async def refuse(call: Call) -> None:
            if call.kind == CREATION:
                raise ApiError(403, "Forbidden", "networkpolicies is forbidden: no such right")

        async def allow(call: Call) -> None:
            """The administrator grants the right."""

        stage.wire.before = refuse
        await training(stage, "000-1", "001-1")
        view = await stage.until(lambda view: warnings(view.status) == ["NotIsolated"], "warned")
        assert "no such right" in view.condition("Running")["message"]
        assert "NotIsolated" in await stage.reasons()
        stage.wire.before = allow
        await stage.change(maxReplicas=8)  # a change of the job ends the pause
        await stage.until(lambda view: warnings(view.status) == [], "no warning")
        assert len(await policies(stage)) == 1

    play(story)


def test_somebody_elses_policy_of_our_name_is_left_alone(play: Play) -> None:
    async def story(stage: Stage) -> None:
        path = await switch_policies_on(stage)
        body = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": NAME},
            "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
        }
        foreign = await stage.kube.send(Request("POST", path, body=body))
        await training(stage, "000-1", "001-1")
        view = await stage.until(lambda view: warnings(view.status) == ["NotIsolated"], "warned")
        [warning] = view.status["warnings"]
        assert f"NetworkPolicy '{NAME}' exists and does not belong" in warning["message"]
        [found] = await policies(stage)
        assert found["metadata"]["uid"] == foreign["metadata"]["uid"]
        assert found["spec"] == foreign["spec"]

    play(story)


def test_without_the_setting_no_job_has_a_policy(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await stage.calm()
        assert await policies(stage) == []

    play(story)
