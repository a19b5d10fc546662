"""No storage is shared: the file that a node takes with it when it loses power, another node has."""

from __future__ import annotations

import re

from e2e import digits
from e2e.conftest import Images
from e2e.digits import Digits
from e2e.kubectl import Kubectl
from e2e.nodes import Nodes

EPOCHS, SAVE_EVERY = 40, 2  # of a script that knows nothing of ddpjob


def test_the_file_of_an_unchanged_script(kubectl: Kubectl, images: Images, nodes: Nodes) -> None:
    manifest = digits.manifest(images.digits, snapshot={"files": ["snapshot.pt"]})
    manifest["spec"]["command"] = ["torchrun", "multinode.py", str(EPOCHS), str(SAVE_EVERY)]
    digits.apply(kubectl, manifest)
    job = Digits(kubectl)
    job.until_training()
    kubectl.until(
        lambda: job.status.get("snapshot", {}).get("filesSyncedAt"), "a copy that is safe"
    )
    group, stays = job.apart()
    _, node, left = job.placed(group)
    survivor = job.pod(stays)
    nodes.stop(node)
    job.until_complete()
    assert job.memberships == [f"started:{digits.PROCESSES}", f"lost:{left}"]
    resumed = {int(epoch) for epoch in re.findall(r"resuming after epoch (\d+)", job.log(survivor))}
    assert len(resumed) == 1, "all its processes began from one file"
    assert resumed.pop() >= SAVE_EVERY
