"""Jobs whose processes append each step that is done to a ledger on their volume.

Only a planned stop saves. So a step that is lost is done twice, and the ledger shows it.
"""

from __future__ import annotations

import json
from collections import defaultdict

from e2e.jobs import Endless
from e2e.kubectl import Kubectl, Object

SCRIPTS = {
    "snapshot.py": """
import sys, time
import torch, torch.distributed as dist
from ddpjob_trainer import Snapshots, step_done

torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
snapshots = Snapshots()
loaded = snapshots.load(model=model, optimizer=optimizer)
step = loaded.step if loaded else 0
with open(sys.argv[1], "a", buffering=1) as ledger:
    while True:
        time.sleep(0.1)
        optimizer.zero_grad()
        model(torch.ones(4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        ledger.write(f"{step} {dist.get_rank()} {dist.get_world_size()}\\n")
        step_done(step, 1_000_000)
        if snapshots.due(step):
            snapshots.save(step, model=model, optimizer=optimizer)
""",
    "live.py": """
import sys, time
import torch
from ddpjob_trainer import Loop

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loop = Loop(model, optimizer, steps=1_000_000)
with open(sys.argv[1], "a", buffering=1) as ledger:
    for step in loop:
        with step:
            time.sleep(0.1)
            optimizer.zero_grad()
            loop.model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        if step.done:
            ledger.write(f"{step.number + 1} {step.rank} {step.world_size}\\n")
""",
}
CONFIG_MAP = "scripts"
HOST_NAME = "kubernetes.io/hostname"


def scripts() -> Object:
    """Return the scripts as an object of the cluster."""
    metadata = {"name": CONFIG_MAP}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": SCRIPTS}


def manifest(image: str, mode: str, waits: tuple[int, int], nodes: tuple[str, str]) -> Object:
    """Return a job of two groups of one process, each on its node.

    `waits` are the seconds from the deletion of a pod of each group to its SIGTERM.
    """
    first, late = map(_pod, waits, nodes)
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": mode},
        "spec": {
            "image": image,
            "command": ["torchrun", f"/scripts/{mode}.py", f"/snapshots/{mode}.ledger"],
            "replicas": 1,
            "processesPerWorker": 1,
            "template": first,
            "extraWorkerGroups": [{"name": "late", "replicas": 1, "template": late}],
            "snapshot": {
                "everySteps": 1_000_000,
                "storage": {"persistentVolumeClaim": {"claimName": mode}},
            },
            "elastic": {"joinPolicy": "Immediate", "settleSeconds": 1},
        },
    }


def _pod(seconds: int, node: str) -> Object:
    wait = {"preStop": {"exec": {"command": ["sleep", str(seconds)]}}}
    mount = {"name": CONFIG_MAP, "mountPath": "/scripts"}
    trainer = {"name": "trainer", "lifecycle": wait, "volumeMounts": [mount]}
    volume = {"name": CONFIG_MAP, "configMap": {"name": CONFIG_MAP}}
    place = {HOST_NAME: node}
    return {"spec": {"containers": [trainer], "volumes": [volume], "nodeSelector": place}}


class LedgerJob(Endless):
    """One such job."""

    def __init__(self, kubectl: Kubectl, mode: str) -> None:
        super().__init__(kubectl, mode)

    def rows(self) -> list[tuple[int, int, int]]:
        """Return step, rank and world size of each entry, read in a worker that runs."""
        workers = self.kubectl.pods(f"ddpjob.io/job={self.name},ddpjob.io/role=worker")
        running = [n for n, pod in workers.items() if pod["status"]["phase"] == "Running"]
        path = f"/snapshots/{self.name}.ledger"
        words = ("exec", running[0], "-c", "trainer", "--", "cat", path)
        lines = self.kubectl(*words).splitlines()
        return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in lines)]

    def last_step(self) -> int:
        """Return the last step that any process has done."""
        return max((step for step, _, _ in self.rows()), default=0)

    def until_steps(self, more: int = 5) -> int:
        """Wait until so many further steps are done; return the last one."""
        before = self.last_step()
        self.kubectl.until(lambda: self.last_step() >= before + more, f"step {before + more}")
        return self.last_step()

    def check(self) -> int:
        """Check that every rank did each step once; return the last step that all have done."""
        ranks: dict[int, list[tuple[int, int]]] = defaultdict(list)
        rows = self.rows()
        last = max(step for step, _, _ in rows) - 1  # the ranks may be within the next one
        for step, rank, world in rows:
            ranks[step].append((rank, world))
        odd = {
            step: sorted(ranks[step])
            for step in range(1, last + 1)
            if sorted(ranks[step]) != [(r, len(ranks[step])) for r in range(len(ranks[step]))]
            or not ranks[step]
        }
        assert not odd, f"{self.name}: steps that were not done once by each rank: {odd}"
        return last

    def suspend(self, *, value: bool) -> None:
        """Suspend or resume the job."""
        patch = json.dumps({"spec": {"suspend": value}})
        self.kubectl("patch", "ddp", self.name, "--type=merge", "--patch", patch)

    def until_no_pods(self) -> None:
        """Wait until no pod of it exists, not even one that is ending."""
        selector = f"ddpjob.io/job={self.name}"
        self.kubectl.until(
            lambda: not self.kubectl.get("pods", labelSelector=selector), "no pod is left"
        )
