"""Whatever dies in mid-run, the digits are learnt, on real nodes: with storage that all share, and
with none but each pod's own, whose content the next pod gets from another one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from e2e import digits
from e2e.conftest import Images
from e2e.digits import Beginning, Digits, other
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes
from e2e.volumes import Volumes
from support.stories import happening, stories

TOLERANCE = 0.01  # of the accuracy


class Run(NamedTuple):
    """A job that trains, and all that it lives on."""

    job: Digits
    operator: Kubectl
    nodes: Nodes
    undisturbed: Digits


Death = Callable[[Run], list[str]]  # returns the memberships that it costs


def rendezvous_pod_is_force_deleted(run: Run) -> list[str]:
    job = run.job
    [victim] = job.kubectl.pods("ddpjob.io/role=rendezvous")
    before, begun, term = job.uids(), job.beginnings(), job.status["rendezvousTerm"]
    delete(job.kubectl, victim)
    job.kubectl.until(lambda: job.status["rendezvousTerm"] == term + 1, "the next term")
    job.until_steps(2)
    assert untouched(job.uids()) == untouched(before)
    assert job.beginnings() == begun
    return []


def operator_pod_is_force_deleted(run: Run) -> list[str]:
    job = run.job
    before, begun = job.uids(), job.beginnings()
    holder = run.operator("get", "lease", "ddpjob-operator", "-o=jsonpath={.spec.holderIdentity}")
    pods = run.operator.pods("app.kubernetes.io/name=ddpjob-operator")
    [victim] = [name for name in pods if holder.startswith(name)]
    delete(run.operator, victim)
    run.operator("rollout", "status", "deployment", "--timeout=300s")
    assert job.uids() == before
    job.until_steps(2)
    assert job.uids() == before
    assert job.beginnings() == begun
    return []


def worker_pod_is_force_deleted(run: Run) -> list[str]:
    return _worker_pod_is_force_deleted(run.job, other(run.job.group_of_rank_0()))


def worker_pod_with_rank_0_is_force_deleted(run: Run) -> list[str]:
    return _worker_pod_is_force_deleted(run.job, run.job.group_of_rank_0())


def _worker_pod_is_force_deleted(job: Digits, group: str) -> list[str]:
    saved, before = job.until_saved(), job.uids()
    victim, _, left = job.placed(group)
    begun = len(job.beginnings(victim))
    delete(job.kubectl, victim)
    until_begun(job, begun, digits.PROCESSES, victim)
    after = job.uids()
    assert victim not in after
    assert untouched(before, victim) <= untouched(after)
    assert job.beginnings()[-1].step >= saved
    return [f"left:{left}", f"joined:{digits.PROCESSES}"]


def node_is_stopped(run: Run) -> list[str]:
    job = run.job
    whole_life(run.undisturbed)
    saved = job.until_saved()
    group, stays = job.apart()
    lost, node, left = job.placed(group)
    survivor, begun = job.pod(stays), len(job.beginnings(lost))
    uid = job.uids()[survivor]
    run.nodes.stop(node)
    job.out_of_reach.add(lost)
    until_begun(job, begun, left)
    assert job.uids()[survivor] == uid
    assert job.beginnings()[-1].step >= saved
    return [f"lost:{left}"]


@functools.cache
def whole_life(job: Digits) -> list[Beginning]:
    """Wait for the end of a job; read while its nodes live, for the logs go with them."""
    job.until_complete()
    return job.beginnings()


def delete(kubectl: Kubectl, pod: str) -> None:
    kubectl("delete", "pod", pod, "--grace-period=0", "--force")


def until_begun(job: Digits, begun: int, processes: int, *without: str) -> None:
    """So many processes have begun since there were so many beginnings to read."""

    def look() -> bool:
        new = job.beginnings(*without)[begun:]
        return bool(new) and new[-1].processes == processes

    job.kubectl.until(look, f"{processes} processes that go on")


def untouched(pods: dict[str, str], *but: str) -> set[tuple[str, str]]:
    """Name and UID of the workers; the rendezvous pod ends with the job."""
    return {each for each in pods.items() if each[0] not in but and "rendezvous" not in each[0]}


@pytest.fixture(scope="module")
def undisturbed(namespace: Callable[[], Kubectl], images: Images, volumes: Volumes) -> Digits:
    """A run that nothing happens to, on its way; it takes no GPU from the others."""
    kubectl = namespace()
    volumes.claim(kubectl, "digits")
    kubectl.apply(digits.manifest(images.digits, paced=False, resource="processesPerWorker"))
    return Digits(kubectl)


@pytest.fixture
def run(kubectl: Kubectl, operator: Kubectl, nodes: Nodes, undisturbed: Digits) -> Run:
    return Run(Digits(kubectl), operator, nodes, undisturbed)


def accuracy(job: Digits) -> float:
    """What holds for every run in the end."""
    status = job.until_complete()
    assert status["restarts"]["application"] == 0
    assert status["progress"]["step"] == digits.STEPS
    return float(status["progress"]["metrics"]["accuracy"])


@stories(
    (
        rendezvous_pod_is_force_deleted,
        operator_pod_is_force_deleted,
        worker_pod_is_force_deleted,
        worker_pod_with_rank_0_is_force_deleted,
        node_is_stopped,
    )
)
def test_storage_is_shared(
    run: Run, images: Images, volumes: Volumes, subtests: pytest.Subtests, story: Sequence[Death]
) -> None:
    volumes.claim(run.job.kubectl, "digits")
    digits.apply(run.job.kubectl, digits.manifest(images.digits))
    die(run, subtests, story)


def test_undisturbed(undisturbed: Digits) -> None:
    begun = whole_life(undisturbed)
    assert accuracy(undisturbed) >= 0.95
    assert undisturbed.memberships == [f"started:{digits.PROCESSES}"]
    assert [each.step for each in begun] == [0]


@stories((worker_pod_is_force_deleted, worker_pod_with_rank_0_is_force_deleted, node_is_stopped))
def test_each_pod_has_its_own_disk(
    run: Run, images: Images, subtests: pytest.Subtests, story: Sequence[Death]
) -> None:
    manifest = digits.manifest(images.digits, snapshot={"everySteps": 2})
    digits.apply(run.job.kubectl, manifest)
    die(run, subtests, story)


def die(run: Run, subtests: pytest.Subtests, story: Sequence[Death]) -> None:
    """One death after the other, and then the end of the training."""
    job, memberships = run.job, [f"started:{digits.PROCESSES}"]
    job.until_training()
    job.until_saved()
    assert [begun.step for begun in job.beginnings()] == [0]

    for death in story:
        with happening(subtests, death):
            memberships += death(run)
            job.until_memberships(memberships)
    job.hurry()
    learnt = accuracy(job)
    assert job.memberships == memberships
    assert learnt == pytest.approx(accuracy(run.undisturbed), abs=TOLERANCE)
