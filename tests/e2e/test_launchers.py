"""Scripts that find the other pods by themselves, over what every worker has in its environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.conftest import Images
from e2e.jobs import Endless
from e2e.kubectl import Kubectl, Object

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(path: str, image: str, **spec: Any) -> Object:
    """A job of the examples, all of whose pods stay for their logs."""
    job: Object = yaml.safe_load((EXAMPLES / path).read_text())
    job["spec"].update(image=image, keepPods="All", **spec)
    return job


@pytest.mark.parametrize(
    ("path", "old", "new", "kept", "goes_on"),
    [
        pytest.param(
            "07-spawn/ddpjob.yaml", "train.py", "spawn.py",
            "checkpoint.pt", r"of 4 begins after epoch", id="spawn",
        ),
        pytest.param(
            "01-torchrun/by-hand.yaml", "train.py 50 10", "multinode.py 150 10",
            "snapshot.pt", "resuming after epoch", id="torchrun_by_hand",
        ),
    ],
)  # fmt: skip
def test_goes_on_when_the_first_worker_is_gone(
    kubectl: Kubectl, images: Images, path: str, old: str, new: str, kept: str, goes_on: str
) -> None:
    """Its pod hosts the store in which all meet, and writes the file that all go on from."""
    job = example(path, images.digits, snapshot={"files": [kept]})
    program, *words = job["spec"]["command"]
    words[-1] = words[-1].replace(old, new)  # as it lies in the image
    job["spec"]["command"] = [program.replace("python", "python3"), *words]
    kubectl.apply(job)
    found = Endless(kubectl, job["metadata"]["name"])
    kubectl.until(
        lambda: found.status.get("snapshot", {}).get("filesKeptAt"), "a copy that is safe"
    )
    first, other = sorted(found.workers())
    kubectl("delete", "pod", first, "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl("logs", other, "-c", "trainer")
    begun = {int(epoch) for epoch in re.findall(rf"{goes_on} (\d+)", log)}
    assert max(begun) >= 5, log
    if new == "spawn.py":
        assert re.search(r"rank \d of 4 learnt 3\.000 -2\.000 1\.000", log), log


def test_mpi_over_three_pods_goes_on_when_one_is_gone(kubectl: Kubectl, images: Images) -> None:
    """Without ssh; what each process was told by the others, and what all learned."""
    job = example("10-mpi/ddpjob.yaml", images.digits, snapshot={"files": ["weights.npz"]})
    job["spec"]["command"] = (
        "mpirun python3 -m mpi4py ring.py --epochs=1500 --save-every=200".split()
    )
    kubectl.apply(job)
    found = Endless(kubectl, job["metadata"]["name"])
    kubectl.until(
        lambda: found.status.get("snapshot", {}).get("filesKeptAt"), "a copy that is safe"
    )
    first, *others = sorted(found.workers())
    log = kubectl("logs", first, "-c", "trainer")
    heard = set(re.findall(r"rank (\d) of 6 heard (\d+) from (\d)", log))
    before = [(rank - 1) % 6 for rank in range(6)]
    assert heard == {(str(rank), str(at * at), str(at)) for rank, at in enumerate(before)}, log
    assert len(re.findall(r"rank \d of 6 has \[0\.0, 1\.0, 2\.0, 3\.0\]", log)) == 6, log
    kubectl("delete", "pod", others[-1], "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl("logs", first, "-c", "trainer")
    begun = [int(epoch) for epoch in re.findall(r"\d processes begin after epoch (\d+)", log)]
    assert begun[0] == 0, log
    assert begun[1] >= 200, log
    learnt = re.findall(r"rank \d of (\d) learnt 3\.000 -2\.000 1\.000", log)
    assert len(learnt) == int(learnt[0]), log


def test_script_for_sagemaker_knows_the_true_hosts(kubectl: Kubectl, images: Images) -> None:
    """Data from a channel; the model of a worker that is gone is where the others look for it."""
    data = (EXAMPLES / "11-sagemaker/opt/ml/input/data/training/points.csv").read_text()
    metadata = {"name": "points"}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {"points.csv": data},
        }
    )
    job = example("11-sagemaker/ddpjob.yaml", images.digits, command=["hosts.py"])
    job["spec"]["snapshot"] = {"files": ["/opt/ml/model"]}
    job["spec"]["sagemaker"] |= {
        "channels": [{"name": "training", "volume": {"configMap": metadata}}],
        "model": {"emptyDir": {}},
        "hyperparameters": {"epochs": "100", "batch-size": "1", "lr": "0.001"},
    }
    kubectl.apply(job)
    found = Endless(kubectl, job["metadata"]["name"])
    kubectl.until(
        lambda: found.status.get("snapshot", {}).get("filesKeptAt"), "a copy that is safe"
    )
    first, *others = sorted(found.workers())
    kubectl("delete", "pod", first, "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl("logs", others[0], "-c", "trainer")
    begun = [tuple(map(int, each)) for each in re.findall(r"of (\d) begins after epoch (\d+)", log)]
    assert begun[0] == (3, 0), log
    assert begun[-1][1] >= 5, log
    assert re.search(r"host 0 of \d begins after epoch [^0]", log), "it is the first one now"
    assert re.search(r"learnt 3\.00 -2\.00 1\.00", log), log
