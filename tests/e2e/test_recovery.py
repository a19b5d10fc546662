"""Whatever dies in mid-run, the digits are learnt: one run each, on real nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import digits
from e2e.conftest import Images
from e2e.digits import Digits
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes
from e2e.volumes import claim

STEPS = 1000
BREAK_AT = 100  # known steps; by then there is a snapshot
TOLERANCE = 0.01  # of the accuracy


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, float]:
    """Accuracy of the run that nothing happened to, once it has been made."""
    return {}


@pytest.fixture
def job(kubectl: Kubectl, images: Images, shared_folder: str) -> Iterator[Digits]:
    with claim(kubectl, "digits", shared_folder, images.digits, "ReadWriteMany"):
        kubectl.apply(digits.manifest(images.digits, STEPS))
        job = Digits(kubectl)
        job.until_training()
        yield job


def finish(job: Digits, memberships: list[str]) -> float:
    """Wait for the end; what holds for every run. Returns the accuracy."""
    status = job.until_complete()
    assert job.memberships == memberships
    assert status["restarts"]["application"] == 0
    assert status["progress"]["step"] == STEPS
    return float(status["progress"]["metrics"]["accuracy"])


def test_undisturbed(job: Digits, undisturbed: dict[str, float]) -> None:
    undisturbed["accuracy"] = finish(job, ["started:6"])
    assert undisturbed["accuracy"] >= 0.95
    assert job.resumed() == [0]


# What dies, and the memberships that it costs.
DEATHS: list[tuple[str, str, list[str]]] = [
    ("worker", "spot", ["started:6", "left:4", "joined:6"]),
    ("worker_with_rank_0", "worker", ["started:6", "left:2", "joined:6"]),
]


@pytest.mark.parametrize(
    ("group", "memberships"), [pytest.param(*row, id=name) for name, *row in DEATHS]
)
def test_worker_pod_is_force_deleted(
    job: Digits, undisturbed: dict[str, float], group: str, memberships: list[str]
) -> None:
    job.until_step(BREAK_AT)
    victim, before = job.pod(group), job.uids()
    saved = job.status["snapshot"]["step"]
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    accuracy = finish(job, memberships)
    after = job.uids()
    assert victim not in after
    assert untouched(before, victim) <= untouched(after)
    assert job.resumed()[-1] >= saved
    assert accuracy == pytest.approx(undisturbed["accuracy"], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("group", "memberships"), [pytest.param(*row, id=name) for name, *row in DEATHS]
)
def test_worker_pod_is_force_deleted_with_its_snapshots(
    kubectl: Kubectl,
    images: Images,
    undisturbed: dict[str, float],
    group: str,
    memberships: list[str],
) -> None:
    """No storage is shared: each pod has an emptyDir, and the new one gets a copy from the other."""
    kubectl.apply(digits.manifest(images.digits, STEPS, snapshot={"everySteps": 20}))
    job = Digits(kubectl)
    job.until_training()
    job.until_step(BREAK_AT)
    saved = job.status["snapshot"]["step"]
    kubectl("delete", "pod", job.pod(group), "--grace-period=0", "--force")
    accuracy = finish(job, memberships)
    assert job.resumed()[-1] >= saved
    assert accuracy == pytest.approx(undisturbed["accuracy"], abs=TOLERANCE)


def test_rendezvous_pod_is_force_deleted(job: Digits, undisturbed: dict[str, float]) -> None:
    job.until_step(BREAK_AT)
    [victim] = job.kubectl.pods("ddpjob.io/role=rendezvous")
    before = job.uids()
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    accuracy = finish(job, ["started:6"])
    assert job.status["rendezvousEpoch"] == 2
    assert untouched(job.uids()) == untouched(before)
    assert job.resumed() == [0]
    assert accuracy == pytest.approx(undisturbed["accuracy"], abs=TOLERANCE)


def test_operator_pod_is_force_deleted(
    job: Digits, operator: Kubectl, undisturbed: dict[str, float]
) -> None:
    job.until_step(BREAK_AT)
    before = job.uids()
    [victim] = operator.pods("app.kubernetes.io/name=ddpjob-operator")
    operator("delete", "pod", victim, "--grace-period=0", "--force")
    operator("rollout", "status", "deployment", "--timeout=300s")
    assert job.uids() == before
    accuracy = finish(job, ["started:6"])
    assert job.resumed() == [0]
    assert accuracy == pytest.approx(undisturbed["accuracy"], abs=TOLERANCE)


def test_node_is_stopped(job: Digits, nodes: Nodes, undisturbed: dict[str, float]) -> None:
    job.until_step(BREAK_AT)
    group, stays = job.apart()
    lost, node, left = job.placed(group)
    other = job.pod(stays)
    uid = job.uids()[other]
    saved = job.status["snapshot"]["step"]
    nodes.stop(node)
    accuracy = finish(job, ["started:6", f"lost:{left}"])
    assert job.uids()[other] == uid
    assert job.resumed(lost)[-1] >= saved  # the node's logs are out of reach
    assert accuracy == pytest.approx(undisturbed["accuracy"], abs=TOLERANCE)


def untouched(pods: dict[str, str], *but: str) -> set[tuple[str, str]]:
    """Name and UID of the workers; the rendezvous pod ends with the job."""
    return {each for each in pods.items() if each[0] not in but and "rendezvous" not in each[0]}
