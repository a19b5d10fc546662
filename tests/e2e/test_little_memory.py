"""A worker's memory limit leaves too little for a copy of the state: it is told, nothing is killed."""

from __future__ import annotations

from e2e.conftest import Images
from e2e.jobs import Endless
from e2e.kubectl import Kubectl

STEPS = 6
# The state takes more than half of what is free: there is room for it, and not for a second one.
SCRIPT = f"""
import torch
from ddpjob_trainer import Snapshots, host_memory, step_done
numbers = int(host_memory.memory_headroom().free * 0.55) // 4
model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(numbers))])
snapshots = Snapshots()
for step in range(1, {STEPS} + 1):
    if snapshots.due(step):
        snapshots.save(step, model=model)
    step_done(step, {STEPS})
"""


def test_training_waits_and_the_job_says_why(kubectl: Kubectl, images: Images) -> None:
    manifest = {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "large"},
        "spec": {
            "image": images.digits,
            "command": ["python3", "-c", SCRIPT],
            "replicas": 1,
            "resources": {"limits": {"memory": "1Gi"}},
            "snapshot": {"everySteps": 1, "keep": 1},
            "keepPods": "All",
        },
    }
    kubectl.apply(manifest)
    job = Endless(kubectl, "large")
    kubectl.until(lambda: job.status.get("completionTime"), "the end")
    assert job.status["state"] == "Complete", kubectl.picture()
    assert job.status["restarts"]["total"] == 0
    assert job.status["snapshot"]["step"] == STEPS
    told = "training pauses while one is written"
    (warning,) = job.status["warnings"]
    assert warning["reason"] == "SnapshotDegraded"
    assert told in warning["message"]
    events = [text for reason, text in kubectl.events("large") if reason == "SnapshotDegraded"]
    assert len(events) == 1
    assert told in events[0]
