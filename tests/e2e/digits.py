"""The digits example on a cluster with 4 + 2 processes, and what it did."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

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
PROCESSES = 6


def manifest(image: str, steps: int, example: str = "ddpjob.yaml", **spec: Any) -> Object:
    """The example, with GPUs for its two groups, and more steps than it would take."""
    job: Object = copy.deepcopy(yaml.safe_load((EXAMPLES / example).read_text()))
    job["metadata"]["name"] = "digits"
    fields = job["spec"]
    fields.update(
        image=image,
        command=[*fields["command"], "--steps", str(steps)],
        keepPods="All",
        **{"gpusPerWorker": 4, **spec},
    )
    fields.pop("processesPerWorker")
    [group] = fields["extraWorkerGroups"]
    group.pop("processesPerWorker")
    group["gpusPerWorker"] = 2
    return job


class Digits:
    """One run of the example."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    @property
    def status(self) -> Object:
        """What the operator last wrote."""
        status: Object = self.kubectl.get("ddp", "digits").get("status", {})
        return status

    @property
    def step(self) -> int:
        """How far the training is known to be."""
        return int(self.status.get("progress", {}).get("step") or 0)

    @property
    def memberships(self) -> list[str]:
        """Cause and world size of each, from the events: `started:6`."""
        found = []
        for reason, message in self.kubectl.events("digits"):
            match = re.match(r"membership \S+ with .*?(\d+) processes", message)
            if reason in CAUSES and match:
                found.append(f"{CAUSES[reason]}:{match[1]}")
        return found

    def resumed(self, *unreadable: str) -> list[int]:
        """Steps that the processes of rank 0 say they went on from, in order."""
        found = []
        for name in self.kubectl.pods("ddpjob.io/role=worker").keys() - set(unreadable):
            log = self.kubectl("logs", name, "-c", "trainer", "--timestamps")
            found += re.findall(r"^(\S+) training from step (\d+) with", log, re.MULTILINE)
        return [int(step) for _, step in sorted(found)]

    def pod(self, group: str) -> str:
        """The worker of this group that lives now."""
        pods = self.kubectl.pods(f"ddpjob.io/group={group}")
        alive = [n for n, p in pods.items() if p["status"]["phase"] in ("Pending", "Running")]
        assert len(alive) == 1, alive
        return alive[0]

    def placed(self, group: str) -> tuple[str, str, int]:
        """The worker of this group, its node, and how many processes the others have."""
        pod = self.pod(group)
        node = self.kubectl.pods("ddpjob.io/job=digits")[pod]["spec"]["nodeName"]
        return pod, node, PROCESSES - (2 if group == "spot" else 4)

    def apart(self) -> tuple[str, str]:
        """The group whose worker is not on the node of the rendezvous pod, and the other one."""
        pods = self.kubectl.pods("ddpjob.io/job=digits")
        [rendezvous] = (p["spec"]["nodeName"] for n, p in pods.items() if "-rendezvous-" in n)
        group = next(g for g in ("spot", "worker") if self.placed(g)[1] != rendezvous)
        return group, "worker" if group == "spot" else "spot"

    def uids(self) -> dict[str, str]:
        """UID of every pod of the job."""
        pods = self.kubectl.pods("ddpjob.io/job=digits")
        return {name: pod["metadata"]["uid"] for name, pod in pods.items()}

    def until_training(self) -> None:
        """All six processes train."""
        self.kubectl.until(
            lambda: self.status.get("membership", {}).get("worldSize") == PROCESSES,
            "six processes",
        )

    def until_step(self, step: int) -> None:
        """The training is known to be so far."""
        self.kubectl.until(lambda: self.step >= step, f"step {step}")

    def until_complete(self) -> Object:
        """The status in the end."""
        self.kubectl.until(lambda: self.status.get("completionTime"), "the end")
        status = self.status
        assert status["state"] == "Complete", self.kubectl.picture()
        return status
