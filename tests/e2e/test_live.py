"""Level L2 on real nodes: planned and unplanned changes under processes that stay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e import digits
from e2e.conftest import Images
from e2e.digits import Digits
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes
from e2e.volumes import claim

STEPS = 2000
CHANGE_AT = 100  # known steps


@pytest.fixture
def job(kubectl: Kubectl, images: Images, shared_folder: str) -> Iterator[Digits]:
    with claim(kubectl, "digits", shared_folder, images.digits, "ReadWriteMany"):
        kubectl.apply(digits.manifest(images.digits, STEPS, "live.yaml"))
        job = Digits(kubectl)
        job.until_training()
        job.until_step(CHANGE_AT)
        yield job


def test_node_is_drained(job: Digits, operator: Kubectl) -> None:
    """The worker leaves after a step; the other one trains on, and takes the next one in."""
    group, stays = job.apart()
    victim, node, left = job.placed(group)
    other = job.pod(stays)
    uid = job.uids()[other]
    try:
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
        operator("drain", node, *options)
        job.kubectl.until(lambda: job.memberships[1:] == [f"left:{left}"], "it has left")
    finally:
        operator("uncordon", node)
    status = job.until_complete()
    assert victim not in job.uids()
    assert job.uids()[other] == uid
    assert job.memberships[:2] == ["started:6", f"left:{left}"]
    assert job.memberships[2:] in ([], ["joined:6"]), "there may be no step left to join for"
    assert status["restarts"]["total"] == 0
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] >= 0.95


def test_worker_pod_is_force_deleted(job: Digits) -> None:
    """Its processes die with it; those of the other worker never stop."""
    victim, _, left = job.placed("spot")
    other = job.pod("worker")
    uid = job.uids()[other]
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    status = job.until_complete()
    assert job.uids()[other] == uid
    assert job.memberships[:2] == ["started:6", f"left:{left}"]
    log = job.kubectl("logs", other, "-c", "trainer")
    assert log.count("starting processes that stay") == 1
    assert "started cold" not in log
    assert status["restarts"]["application"] == 0
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] >= 0.95


def test_network_of_a_node_is_deleted(job: Digits, nodes: Nodes) -> None:
    """No connection is closed; the silence ends the membership, and the others go on."""
    group, stays = job.apart()
    _, node, left = job.placed(group)
    other = job.pod(stays)
    uid = job.uids()[other]
    nodes.cut_off(node)
    status = job.until_complete()
    assert job.uids()[other] == uid
    assert job.memberships == ["started:6", f"lost:{left}"]
    assert job.kubectl("logs", other, "-c", "trainer").count("starting processes that stay") == 1
    assert status["restarts"]["application"] == 0
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] >= 0.95


def test_scaled_up_and_down(kubectl: Kubectl, images: Images, shared_folder: str) -> None:
    """`kubectl scale`; the first worker never stops."""
    with claim(kubectl, "digits", shared_folder, images.digits, "ReadWriteMany"):
        spec = {"gpusPerWorker": 1, "maxReplicas": 2}
        kubectl.apply(digits.manifest(images.digits, 4 * STEPS, "live.yaml", **spec))
        job = Digits(kubectl)
        job.until_step(CHANGE_AT)
        [first] = kubectl.pods("ddpjob.io/group=worker")
        kubectl("scale", "ddp/digits", "--replicas=2")
        kubectl.until(lambda: job.memberships == ["started:3", "joined:4"], "four processes")
        kubectl("scale", "ddp/digits", "--replicas=1")
        kubectl.until(lambda: job.memberships[2:] == ["left:3"], "three again")
        status = job.until_complete()
        log = kubectl("logs", first, "-c", "trainer")
        assert log.count("starting processes that stay") == 1
        assert status["restarts"]["total"] == 0
        assert status["progress"]["metrics"]["accuracy"] >= 0.95
