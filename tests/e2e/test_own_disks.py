"""No storage is shared: what a node takes with it when it loses power, another node has."""

from __future__ import annotations

import re

from e2e import digits
from e2e.conftest import Images
from e2e.digits import Digits
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes

STEPS = 1000
BREAK_AT = 100  # known steps
EPOCHS, SAVE_EVERY = 400, 10  # of a script that knows nothing of ddpjob


def test_snapshots(kubectl: Kubectl, images: Images, nodes: Nodes) -> None:
    kubectl.apply(digits.manifest(images.digits, STEPS, snapshot={"everySteps": 20}))
    job = Digits(kubectl)
    job.until_training()
    job.until_step(BREAK_AT)
    lost, node, left = job.placed(job.apart()[0])
    saved = job.status["snapshot"]["step"]
    nodes.stop(node)
    status = job.until_complete()
    assert job.memberships == ["started:6", f"lost:{left}"]
    assert job.resumed(lost)[-1] >= saved > 0
    assert status["progress"]["step"] == STEPS
    assert status["progress"]["metrics"]["accuracy"] >= 0.95


def test_the_file_of_an_unchanged_script(kubectl: Kubectl, images: Images, nodes: Nodes) -> None:
    manifest = digits.manifest(images.digits, 0, snapshot={"files": ["snapshot.pt"]})
    command = ["torchrun", "multinode.py", str(EPOCHS), str(SAVE_EVERY)]
    manifest["spec"]["command"] = command
    kubectl.apply(manifest)
    job = Digits(kubectl)
    job.until_training()
    kubectl.until(lambda: job.status.get("snapshot", {}).get("filesKeptAt"), "a copy that is safe")
    group, stays = job.apart()
    _, node, left = job.placed(group)
    other = job.pod(stays)
    nodes.stop(node)
    job.until_complete()
    assert job.memberships == ["started:6", f"lost:{left}"]
    log = kubectl("logs", other, "-c", "trainer")
    resumed = {int(epoch) for epoch in re.findall(r"resuming after epoch (\d+)", log)}
    assert len(resumed) == 1, "all its processes began from one file"
    assert resumed.pop() >= SAVE_EVERY
