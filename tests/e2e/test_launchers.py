"""Scripts that find the other pods by themselves, over what every worker has in its environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.conftest import Images
from e2e.jobs import Endless
from e2e.kubectl import Kubectl, Object
from support.stories import ALONE

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AT_ONCE = 2


def mp_spawn(kubectl: Kubectl, image: str) -> None:
    job = example("07-spawn/ddpjob.yaml", image, command=["python3", "spawn.py"])
    goes_on = "of 4 begins after epoch"
    log = _goes_on_when_the_first_worker_is_gone(kubectl, job, "checkpoint.pt", goes_on)
    assert re.search(r"rank \d of 4 learnt 3\.000 -2\.000 1\.000", log), log


def torchrun_by_hand(kubectl: Kubectl, image: str) -> None:
    job = example("01-torchrun/by-hand.yaml", image)
    shell, option, line = job["spec"]["command"]
    line = line.replace("train.py 50 10", "multinode.py 16 2")
    job["spec"]["command"] = [shell, option, line]
    _goes_on_when_the_first_worker_is_gone(kubectl, job, "snapshot.pt", "resuming after epoch")


def _goes_on_when_the_first_worker_is_gone(
    kubectl: Kubectl, job: Object, kept: str, goes_on: str
) -> str:
    """Its pod hosts the store in which all meet, and writes the file that all go on from."""
    job["spec"]["snapshot"] = {"files": [kept]}
    found = until_copied(kubectl, job)
    first, other = sorted(found.workers())
    kubectl("delete", "pod", first, "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl.logs(other)
    begun = {int(epoch) for epoch in re.findall(rf"{goes_on} (\d+)", log)}
    assert max(begun) >= 2, log
    return log


def mpi_over_three_pods(kubectl: Kubectl, image: str) -> None:
    """Without ssh; what each process was told by the others, and what all learned."""
    job = example("10-mpi/ddpjob.yaml", image, snapshot={"files": ["weights.npz"]})
    job["spec"]["command"] = "mpirun python3 -m mpi4py ring.py --epochs=400 --save-every=40".split()
    found = until_copied(kubectl, job)
    first, *others = sorted(found.workers())
    log = kubectl.logs(first)
    heard = set(re.findall(r"rank (\d) of 6 heard (\d+) from (\d)", log))
    before = [(rank - 1) % 6 for rank in range(6)]
    assert heard == {(str(rank), str(at * at), str(at)) for rank, at in enumerate(before)}, log
    assert len(re.findall(r"rank \d of 6 has \[0\.0, 1\.0, 2\.0, 3\.0\]", log)) == 6, log
    kubectl("delete", "pod", others[-1], "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl.logs(first)
    begun = [int(epoch) for epoch in re.findall(r"\d processes begin after epoch (\d+)", log)]
    assert begun[0] == 0, log
    assert begun[1] >= 40, log
    learnt = re.findall(r"rank \d of (\d) learnt 3\.000 -2\.000 1\.000", log)
    assert len(learnt) == int(learnt[0]), log


def sagemaker(kubectl: Kubectl, image: str) -> None:
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
    job = example("11-sagemaker/ddpjob.yaml", image, command=["hosts.py"])
    job["spec"]["snapshot"] = {"files": ["/opt/ml/model"]}
    job["spec"]["sagemaker"] |= {
        "channels": [{"name": "training", "volume": {"configMap": metadata}}],
        "model": {"emptyDir": {}},
        "hyperparameters": {"epochs": "20", "batch-size": "2", "lr": "0.01"},
    }
    found = until_copied(kubectl, job)
    first, *others = sorted(found.workers())
    kubectl("delete", "pod", first, "--grace-period=0", "--force")
    kubectl.until(lambda: found.status.get("state") == "Complete", "the end")
    log = kubectl.logs(others[0])
    begun = [tuple(map(int, each)) for each in re.findall(r"of (\d) begins after epoch (\d+)", log)]
    assert begun[0] == (3, 0), log
    assert begun[-1][1] >= 5, log
    assert re.search(r"host 0 of \d begins after epoch [^0]", log), "it is the first one now"
    assert re.search(r"learnt 3\.00 -2\.00 1\.00", log), log


def example(path: str, image: str, **spec: Any) -> Object:
    """A job of the examples, all of whose pods stay for their logs."""
    job: Object = yaml.safe_load((EXAMPLES / path).read_text())
    job["spec"].update(image=image, keepPods="All", **spec)
    return job


def until_copied(kubectl: Kubectl, job: Object) -> Endless:
    """The job, when a copy of what its script writes lies elsewhere too."""
    kubectl.apply(job)
    found = Endless(kubectl, job["metadata"]["name"])
    kubectl.until(
        lambda: found.status.get("snapshot", {}).get("filesSyncedAt"), "a copy that is safe"
    )
    return found


STORIES = (mp_spawn, torchrun_by_hand, mpi_over_three_pods, sagemaker)


@pytest.fixture(scope="module")
def told(
    namespace: Callable[[], Kubectl], images: Images, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[None]]]:
    """Those that were chosen, some at the same time: they wait more than they compute."""
    chosen = " ".join(item.name for item in request.session.items)
    stories = [story for story in STORIES if story.__name__ in chosen]
    with ThreadPoolExecutor(1 if ALONE else AT_ONCE) as pool:
        kubectl = namespace()
        yield {each.__name__: pool.submit(each, kubectl, images.digits) for each in stories}


@pytest.mark.parametrize("name", [story.__name__ for story in STORIES])
def test_goes_on_when_a_worker_is_gone(told: dict[str, Future[None]], name: str) -> None:
    told[name].result()
