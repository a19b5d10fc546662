"""Level L2 on real nodes: planned and unplanned changes under processes that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from e2e import digits
from e2e.conftest import Images
from e2e.digits import PROCESSES, Digits
from e2e.kubectl import Kubectl, Object
from e2e.nodes import Nodes
from e2e.volumes import Volumes
from support.stories import happening, stories


class Run(NamedTuple):
    """A job that trains, and all that it lives on."""

    job: Digits
    operator: Kubectl
    nodes: Nodes


Change = Callable[[Run], list[str]]  # returns the memberships that it makes


def node_is_drained(run: Run) -> list[str]:
    """The worker leaves after a step; the other one trains on, and takes the next one in."""
    job = run.job
    before, restarts = job.memberships, job.status["restarts"]
    group, stays = job.apart()
    victim, node, left = job.placed(group)
    other = job.pod(stays)
    uid = job.uids()[other]
    made = [f"left:{left}", f"joined:{PROCESSES}"]
    try:
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s")
        run.operator("drain", node, *options)
        job.until_memberships(before + made[:1])
    finally:
        run.operator("uncordon", node)
    job.until_memberships(before + made)
    assert victim not in job.uids()
    assert job.uids()[other] == uid
    assert job.status["restarts"] == restarts
    return made


def worker_pod_is_force_deleted(run: Run) -> list[str]:
    """Its processes die with it; those of the other worker never stop."""
    job, before = run.job, run.job.memberships
    victim, _, left = job.placed("spot")
    other = job.pod("worker")
    uid = job.uids()[other]
    job.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    made = [f"left:{left}", f"joined:{PROCESSES}"]
    job.until_memberships(before + made)
    job.until_steps(2)
    assert job.uids()[other] == uid
    never_stopped(job, other)
    return made


def network_of_a_node_is_deleted(run: Run) -> list[str]:
    """No connection is closed; the silence ends the membership, and the others go on."""
    job, before = run.job, run.job.memberships
    group, stays = job.apart()
    lost, node, left = job.placed(group)
    other = job.pod(stays)
    uid = job.uids()[other]
    run.nodes.cut_off(node)
    job.out_of_reach.add(lost)
    job.until_memberships([*before, f"lost:{left}"])
    job.until_steps(2)
    assert job.uids()[other] == uid
    never_stopped(job, other)
    return [f"lost:{left}"]


def never_stopped(job: Digits, pod: str) -> None:
    log = job.log(pod)
    assert log.count("starting processes that stay") == 1
    assert "started cold" not in log


@stories((node_is_drained, worker_pod_is_force_deleted, network_of_a_node_is_deleted))
def test_processes_stay(
    kubectl: Kubectl,
    operator: Kubectl,
    images: Images,
    nodes: Nodes,
    volumes: Volumes,
    subtests: pytest.Subtests,
    story: Sequence[Change],
) -> None:
    volumes.claim(kubectl, "digits")
    digits.apply(kubectl, digits.manifest(images.digits, "live.yaml"))
    run, memberships = Run(Digits(kubectl), operator, nodes), [f"started:{PROCESSES}"]
    run.job.until_training()
    run.job.until_steps(2)
    for change in story:
        with happening(subtests, change):
            memberships += change(run)
    run.job.hurry()
    status = learnt(run.job)
    assert run.job.memberships == memberships
    assert status["restarts"]["application"] == 0


def test_scaled_up_and_down(kubectl: Kubectl, images: Images, volumes: Volumes) -> None:
    """`kubectl scale`; the first worker never stops."""
    volumes.claim(kubectl, "digits")
    manifest = digits.manifest(images.digits, "live.yaml", gpusPerWorker=1, maxReplicas=2)
    digits.apply(kubectl, manifest)
    job = Digits(kubectl)
    kubectl.until(lambda: job.step >= 2, "two steps")
    [first] = kubectl.pods("ddpjob.io/group=worker")
    kubectl("scale", "ddp/digits", "--replicas=2")
    job.until_memberships(["started:2", "joined:3"])
    kubectl("scale", "ddp/digits", "--replicas=1")
    job.until_memberships(["started:2", "joined:3", "left:2"])
    job.hurry()
    status = learnt(job)
    assert job.log(first).count("starting processes that stay") == 1
    assert status["restarts"]["total"] == 0


def learnt(job: Digits) -> Object:
    status = job.until_complete()
    assert status["progress"]["step"] == digits.STEPS
    assert status["progress"]["metrics"]["accuracy"] >= 0.95
    return status
