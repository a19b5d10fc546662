"""What happens to operators, nodes and pods on a real cluster, at length; figures are printed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import pytest

from e2e.conftest import Images
from e2e.jobs import Endless, endless
from e2e.kubectl import Kubectl, Object
from e2e.nodes import Nodes
from e2e.volumes import Volumes
from soak import ledger_jobs
from soak.ledger_jobs import HOST_NAME, LedgerJob
from soak.pod_faults import PodFaults
from support.stories import happening, stories

OPERATORS = "app.kubernetes.io/name=ddpjob-operator"
LOADED = 2.0  # factor for a busy machine
TRAINING_SECONDS = 25.0  # without the node of the rendezvous pod
TOLD_SECONDS = 15.0  # a worker that is cut off
FROZEN_SECONDS = 60.0
ORPHAN_SECONDS = 15
ORPHAN_MARGIN = 15  # for the end of the processes

Figure = Callable[[str], None]


class World(NamedTuple):
    """A cluster, and what disturbs it."""

    kubectl: Kubectl
    operator: Kubectl
    nodes: Nodes
    faults: PodFaults
    figure: Figure


@pytest.fixture
def figure(capsys: pytest.CaptureFixture[str]) -> Figure:
    """Print a figure at once, also if the test passes."""

    def tell(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}")  # noqa: T201

    return tell


@pytest.fixture
def faults() -> Iterator[PodFaults]:
    faults = PodFaults()
    yield faults
    faults.restore()


@pytest.fixture
def world(
    kubectl: Kubectl, operator: Kubectl, nodes: Nodes, faults: PodFaults, figure: Figure
) -> World:
    return World(kubectl, operator, nodes, faults, figure)


# Operators and the network of a worker: a job whose processes only step


def leader_is_frozen_for_a_minute(world: World, job: Endless) -> None:
    """The other operator takes over. The first one wakes up, and writes nothing that it planned."""
    operator, told = world.operator, Counter(job.causes())
    leader, frozen_at = leader_of(operator), time.monotonic()
    world.faults.freeze(operator.pods(OPERATORS)[leader])
    since = renewed_at(operator)
    victim = job.workers()[0]
    force_delete(job.kubectl, victim)
    operator.until(lambda: leader_of(operator) not in ("", leader), "another leader")
    world.figure(f"leader frozen: another one leads after {time.monotonic() - frozen_at:.1f} s")
    until_replaced(job, victim)
    world.figure(f"leader frozen: world whole after {time.monotonic() - frozen_at:.1f} s")
    operator.until(
        lambda: (renewed_at(operator) - since).total_seconds() > FROZEN_SECONDS,
        "a minute of the other leader",
    )
    uids, successor = job.uids(), leader_of(operator)
    world.faults.thaw()
    operator("rollout", "status", "deployment", "--timeout=300s")
    until_steps(job, 100)
    assert leader_of(operator) == successor
    assert job.uids() == uids
    replaced_once(Counter(job.causes()) - told)


def both_operators_are_killed(world: World, job: Endless) -> None:
    """The processes go on; a worker that is lost meanwhile is replaced by the next operators."""
    told, victim, killed_at = Counter(job.causes()), job.workers()[0], time.monotonic()
    before = world.operator.pods(OPERATORS)
    assert len(before) == 2
    force_delete(world.operator, *before)
    force_delete(job.kubectl, victim)
    until_replaced(job, victim)
    world.figure(f"both operators killed: world whole after {time.monotonic() - killed_at:.1f} s")
    world.operator("rollout", "status", "deployment", "--timeout=300s")
    assert not before.keys() & world.operator.pods(OPERATORS).keys()
    until_steps(job, 10)
    replaced_once(Counter(job.causes()) - told)


def network_of_a_worker_is_cut(world: World, job: Endless) -> None:
    """Its node is well, so only the silence says it; its pod is replaced after orphanSeconds."""
    pods, told = job.kubectl.pods(f"ddpjob.io/job={job.name}"), Counter(job.causes())
    victim, cut_at = job.workers()[0], time.monotonic()
    world.faults.cut_off(pods[victim])
    job.kubectl.until(lambda: (Counter(job.causes()) - told)["WorkerSilent"], "WorkerSilent")
    seconds = time.monotonic() - cut_at
    world.figure(f"network cut: told after {seconds:.1f} s")
    assert seconds < LOADED * TOLD_SECONDS
    [silent] = job.status["silentWorkers"]
    assert silent["name"] == victim
    until_replaced(job, victim)
    seconds = time.monotonic() - cut_at
    world.figure(f"network cut: replaced, and the world whole after {seconds:.1f} s")
    assert seconds > ORPHAN_SECONDS + ORPHAN_MARGIN
    new = Counter(job.causes()) - told
    assert (new["WorkerSilent"], new["WorkerReplaced"], new["WorkerLost"]) == (1, 1, 1)


@stories((leader_is_frozen_for_a_minute, both_operators_are_killed, network_of_a_worker_is_cut))
def test_operators_and_network(
    world: World,
    images: Images,
    subtests: pytest.Subtests,
    story: Sequence[Callable[[World, Endless], None]],
) -> None:
    elastic = {"joinPolicy": "Immediate", "settleSeconds": 1, "orphanSeconds": ORPHAN_SECONDS}
    world.kubectl.apply(endless(images.digits, "steps", replicas=2, elastic=elastic))
    job = Endless(world.kubectl, "steps")
    job.until_world(2)
    for scene in story:
        with happening(subtests, scene):
            scene(world, job)


def leader_of(operator: Kubectl) -> str:
    """Return the pod that holds the operators' Lease; empty if none does."""
    holder = operator("get", "lease", "ddpjob-operator", "-o=jsonpath={.spec.holderIdentity}")
    return next((name for name in operator.pods(OPERATORS) if holder.startswith(name)), "")


def renewed_at(operator: Kubectl) -> datetime:
    """Return when the Lease was renewed last."""
    at = operator("get", "lease", "ddpjob-operator", "-o=jsonpath={.spec.renewTime}")
    return datetime.fromisoformat(at)


def force_delete(kubectl: Kubectl, *pods: str) -> None:
    kubectl("delete", "pod", *pods, "--grace-period=0", "--force")


def until_replaced(job: Endless, victim: str) -> None:
    """Another worker is a member in its place."""

    def look() -> bool:
        members = job.status.get("membership", {}).get("workers", [])
        return len(members) == 2 and victim not in members and job.status["state"] == "Running"

    job.kubectl.until(look, f"a world of 2 without {victim}")


def until_steps(job: Endless, more: int) -> None:
    """The operator shows so many further steps."""
    before = last_step(job)
    job.kubectl.until(lambda: last_step(job) >= before + more, f"{more} steps")


def last_step(job: Endless) -> int:
    """Return the last step that the operator shows."""
    return int(job.status.get("progress", {}).get("step") or 0)


def replaced_once(causes: Counter[str]) -> None:
    """The events name one replacement: one worker joined, and one left or was lost."""
    assert causes["WorkerReplaced"] == 1, causes
    assert causes["WorkerJoined"] == 1, causes
    assert causes["WorkerLeft"] + causes["WorkerLost"] == 1, causes


# Ends: jobs that would show a step that is lost


def suspended_in_the_worst_order(world: World, jobs: Sequence[LedgerJob]) -> None:
    """The worker with rank 0 gets its signal seconds before the other one."""
    steps = {job: job.until_steps() for job in jobs}
    for job in jobs:
        job.suspend(value=True)
    for job in jobs:
        job.until_no_pods()
        job.suspend(value=False)
    continued(steps)


def deleted_in_the_worst_order(world: World, jobs: Sequence[LedgerJob]) -> None:
    """The rendezvous service gets its signal first, then one worker after the other."""
    steps = {job: job.until_steps() for job in jobs}
    objects = [without_status(job.object) for job in jobs]
    world.kubectl("delete", "ddp", *(job.name for job in jobs), "--timeout=180s")
    for job in jobs:
        job.until_no_pods()
    world.kubectl.apply(*objects)
    continued(steps)


def node_of_the_rendezvous_pod_is_stopped(world: World, jobs: Sequence[LedgerJob]) -> None:
    """With it goes a worker; the other one trains on, under the service of the next term."""
    steps = {job: job.until_steps() for job in jobs}
    places = {job: rendezvous_node(job) for job in jobs}
    node = places[jobs[0]]
    world.nodes.stop(node)
    stopped_at = time.monotonic()
    left = {job for job in jobs if places[job] == node}
    while left:
        job = world.kubectl.until(lambda: next(filter(trains_alone, left), None), "training")
        left.remove(job)
        seconds = time.monotonic() - stopped_at
        stall = job.status["history"][-1].get("stallSeconds")
        world.figure(f"node of {job.name}'s rendezvous pod stopped: {seconds:.1f} s, stall {stall}")
        assert seconds < LOADED * TRAINING_SECONDS
        assert job.status["rendezvousTerm"] > 1
    assert steps


@stories(
    (
        suspended_in_the_worst_order,
        deleted_in_the_worst_order,
        node_of_the_rendezvous_pod_is_stopped,
    )
)
def test_no_step_is_lost(
    world: World,
    images: Images,
    volumes: Volumes,
    subtests: pytest.Subtests,
    story: Sequence[Callable[[World, Sequence[LedgerJob]], None]],
) -> None:
    world.kubectl.apply(ledger_jobs.scripts())
    one, other = worker_nodes(world.kubectl)
    for mode in MODES:
        volumes.claim(world.kubectl, mode)
        world.kubectl.apply(ledger_jobs.manifest(images.digits, mode, (2, 6), (one, other)))
    jobs = [LedgerJob(world.kubectl, mode) for mode in MODES]
    for job in jobs:
        job.until_world(2)
    for scene in story:
        with happening(subtests, scene):
            scene(world, jobs)


MODES = ("snapshot", "live")


def continued(steps: dict[LedgerJob, int]) -> None:
    """The jobs train again, and every step was done once."""
    for job, before in steps.items():
        job.until_world(2)
        assert job.until_steps() > before
        job.check()


def trains_alone(job: LedgerJob) -> bool:
    """Return whether one process trains, and the operator knows a step of it."""
    status = job.status
    newest = status["history"][-1]
    return newest["worldSize"] == 1 and "firstStep" in newest and status["state"] != "Stalled"


def rendezvous_node(job: LedgerJob) -> str:
    """Return the node of its rendezvous pod."""
    [pod] = job.kubectl.pods(f"ddpjob.io/job={job.name},ddpjob.io/role=rendezvous").values()
    return str(pod["spec"]["nodeName"])


def worker_nodes(kubectl: Kubectl) -> list[str]:
    """Return the names of two nodes that take any pod."""
    nodes = [each for each in kubectl.get("nodes") if not each["spec"].get("taints")]
    return [str(each["metadata"]["labels"][HOST_NAME]) for each in nodes][:2]


def without_status(job: Object) -> Object:
    """Return a job as a user would apply it again."""
    metadata = {"name": job["metadata"]["name"]}
    return {**{key: job[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata}


# Memory

MEMORY = "256M"
GREEDY = "b'x' * (1 << 30)"
# Files in memory belong to no process, so the kernel kills the largest one: the agent.
FILL = (
    "file = open('/dev/shm/fill', 'wb'); any(file.write(bytes(1 << 20)) < 0 for _ in range(1024))"
)


def greedy(image: str, name: str, script: str) -> Object:
    """Return a job whose process takes more memory than its limit; it may restart once."""
    policy = {"maxRestarts": {"application": 1}, "backoffSeconds": 1}
    job = endless(image, name, replicas=1, failurePolicy=policy)
    job["spec"]["resources"] = {"limits": {"memory": MEMORY}}
    job["spec"]["command"] = ["python3", "-c", script]
    return job


def test_memory_runs_out(kubectl: Kubectl, images: Images, figure: Figure) -> None:
    """Of a process, and of a pod with all of its processes: named, and counted."""
    kubectl.apply(greedy(images.digits, "process", GREEDY), greedy(images.digits, "pod", FILL))
    process, pod = Endless(kubectl, "process"), Endless(kubectl, "pod")
    for job in (process, pod):
        kubectl.until(lambda: job.status.get("completionTime"), f"the end of {job.name}")  # noqa: B023
        assert job.status["state"] == "Failed"
        figure(
            f"{job.name}: {job.condition('Failed')['reason']}: {job.condition('Failed')['message']}"
        )
    for job in (process, pod):
        assert "raise" in job.condition("Failed")["message"]
    assert "out of memory: the memory limit of 256 MB" in process.condition("Failed")["message"]
    assert process.status["restarts"]["application"] == 1
    assert "OOMKilled" in pod.condition("Failed")["message"]
    assert pod.condition("Failed")["reason"] == "OutOfMemory"
