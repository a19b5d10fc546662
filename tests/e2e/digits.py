"""The digits example on a cluster with 2 + 1 processes, and what it did."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from e2e.kubectl import Kubectl, Object

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "digits"
CAUSES = {
    "Started": "started",
    "WorkerLost": "lost",
    "Restarted": "failed",
    "WorkerLeft": "left",
    "WorkerJoined": "joined",
}
PROCESSES = 3
GPU = "nvidia.com/gpu"
STEPS = 500


def manifest(
    image: str,
    example: str = "ddpjob.yaml",
    *,
    paced: bool = True,
    resource: str = "gpusPerWorker",
    **spec: Any,
) -> Object:
    """The example, as two groups that fit on no single node; slow until `Digits.hurry`."""
    job: Object = copy.deepcopy(yaml.safe_load((EXAMPLES / example).read_text()))
    job["metadata"]["name"] = "digits"
    fields = job["spec"]
    torchrun, *script = fields["command"]
    if paced:
        script.insert(0, "paced.py")
        fields["snapshot"]["everySteps"] = 2
    [group] = fields["extraWorkerGroups"]
    for each, count in ((fields, 2), (group, 1)):
        each.pop("processesPerWorker")
        each[resource] = count
    command = [torchrun, *script, "--steps", str(STEPS)]
    fields.update(image=image, command=command, keepPods="All", **spec)
    return job


def apply(kubectl: Kubectl, job: Object) -> None:
    """Apply a job when all GPUs are free, or it would start with what others leave."""
    kubectl.until(lambda: _all_free(kubectl), f"{PROCESSES} free GPUs")
    kubectl.apply(job)


def _all_free(kubectl: Kubectl) -> bool:
    nodes = [each["status"] for each in kubectl.get("nodes")]
    ready = [
        {"type": "Ready", "status": "True"}.items() <= c.items()
        for n in nodes
        for c in n["conditions"]
    ]
    there = sum(int(node["allocatable"].get(GPU, 0)) for node in nodes)
    held = [
        pod["metadata"]["name"]
        for pod in kubectl.get("pods", everywhere=True)
        if pod["status"]["phase"] in ("Pending", "Running") and pod["spec"].get("nodeName")
        for container in pod["spec"]["containers"]
        if GPU in container.get("resources", {}).get("limits", {})
    ]
    return sum(ready) == len(nodes) and there == PROCESSES and not held


class Beginning(NamedTuple):
    """What the process of rank 0 said of a membership."""

    time: str
    step: int
    processes: int


class Digits:
    """One run of the example."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.out_of_reach: set[str] = set()  # pods whose node is gone

    @property
    def status(self) -> Object:
        """What the operator last wrote."""
        status: Object = self.kubectl.get("ddpjobs", "digits").get("status", {})
        return status

    @property
    def step(self) -> int:
        """How far the training is known to be."""
        return int(self.status.get("progress", {}).get("step") or 0)

    @property
    def saved(self) -> int:
        """Step of the newest snapshot."""
        return int(self.status.get("snapshot", {}).get("step") or 0)

    @property
    def memberships(self) -> list[str]:
        """Cause and world size of each, from the events: `started:6`."""
        found = []
        for reason, message in self.kubectl.events("digits"):
            match = re.match(r"membership \S+ with .*?(\d+) process", message)
            if reason in CAUSES and match:
                found.append(f"{CAUSES[reason]}:{match[1]}")
        return found

    def beginnings(self, *without: str) -> list[Beginning]:
        """What the processes of rank 0 say that they went on from, in order."""
        found = []
        workers = self.kubectl.pods(f"{SELECTOR},ddpjob.io/role=worker")
        readable = {name for name, pod in workers.items() if _has_log(pod)}
        for name in readable - self.out_of_reach - set(without):
            log = self.kubectl.logs(name, timestamps="true")
            found += re.findall(r"^(\S+) training from step (\d+) with (\d+)", log, re.MULTILINE)
        return [Beginning(time, int(step), int(size)) for time, step, size in sorted(found)]

    def log(self, pod: str) -> str:
        """What the processes of a worker wrote."""
        return self.kubectl.logs(pod)

    def pod(self, group: str) -> str:
        """The worker of this group that lives now."""
        pods = self.kubectl.pods(f"ddpjob.io/group={group}")
        alive = [n for n, p in pods.items() if p["status"]["phase"] in ("Pending", "Running")]
        assert len(alive) == 1, alive
        return alive[0]

    def group_of_rank_0(self) -> str:
        """The group whose worker comes first in the membership."""
        first = self.status["membership"]["workers"][0]
        return next(group for group in ("spot", "worker") if self.pod(group) == first)

    def placed(self, group: str) -> tuple[str, str, int]:
        """The worker of this group, its node, and how many processes the others have."""
        pod = self.pod(group)
        node = self.kubectl.pods(SELECTOR)[pod]["spec"]["nodeName"]
        return pod, node, PROCESSES - (1 if group == "spot" else 2)

    def apart(self) -> tuple[str, str]:
        """The group whose worker is not on the node of the rendezvous pod, and the other one."""
        pods = self.kubectl.pods(SELECTOR)
        [rendezvous] = (p["spec"]["nodeName"] for n, p in pods.items() if "-rendezvous-" in n)
        group = next(g for g in ("spot", "worker") if self.placed(g)[1] != rendezvous)
        return group, other(group)

    def uids(self) -> dict[str, str]:
        """UID of every pod of the job."""
        pods = self.kubectl.pods(SELECTOR)
        return {name: pod["metadata"]["uid"] for name, pod in pods.items()}

    def until_training(self) -> None:
        """All processes train."""
        self.kubectl.until(
            lambda: self.status.get("membership", {}).get("worldSize") == PROCESSES,
            f"{PROCESSES} processes",
        )

    def until_steps(self, more: int) -> None:
        """The training is known to be further by so many steps, or by one that is done again."""
        step = self.step
        self.kubectl.until(lambda: self.step >= step + more, f"step {step + more}")

    def until_saved(self) -> int:
        """There is a snapshot that was not there before; its step."""
        before = self.saved
        self.kubectl.until(lambda: self.saved > before, f"a snapshot after step {before}")
        return self.saved

    def until_memberships(self, memberships: list[str]) -> None:
        """These were told of, and no other ones."""
        self.kubectl.until(lambda: self.memberships == memberships, str(memberships))

    def hurry(self) -> None:
        """The processes wait no more between steps."""
        pods = self.kubectl.pods(f"{SELECTOR},ddpjob.io/role=worker")
        for name in pods.keys() - self.out_of_reach:
            if pods[name]["status"]["phase"] == "Running":
                self.kubectl("exec", name, "-c", "trainer", "--", "touch", "/tmp/hurry")

    def until_complete(self) -> Object:
        """The status in the end."""
        self.kubectl.until(lambda: self.status.get("completionTime"), "the end")
        status = self.status
        assert status["state"] == "Complete", self.kubectl.picture()
        return status


SELECTOR = "ddpjob.io/job=digits"


def other(group: str) -> str:
    """The other one of the two groups."""
    return "worker" if group == "spot" else "spot"


def _has_log(pod: Object) -> bool:
    containers = pod["status"].get("containerStatuses", [])
    return any("waiting" not in each["state"] for each in containers)
