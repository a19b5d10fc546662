"""Worker pods of jobs for SageMaker's scripts, and for other devices than NVIDIA's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ddpjob_operator.api import jobfile
from support.rawpods import (
    make_cluster_job,
    mounts,
    trainer,
    trainer_of,
    values,
    volume,
    worker_manifest,
)

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
DATA = {"persistentVolumeClaim": {"claimName": "digits", "readOnly": True}}
MODEL = {"persistentVolumeClaim": {"claimName": "models"}}
CONVENTIONS = {
    "hyperparameters": {"lr": "0.1", "e": "5", "name": "x y"},
    "channels": [{"name": "training", "volume": DATA}],
    "model": MODEL,
}


@pytest.mark.parametrize(
    ("distribution", "start", "launcher"),
    [
        (None, ["python3"], "python"),
        ("torch_distributed", ["torchrun"], "torchrun"),
        ("pytorchddp", ["torchrun"], "torchrun"),
        ("mpi", ["mpirun", "python3", "-m", "mpi4py"], "mpi"),
    ],
)
def test_distribution_says_what_starts_the_entry_point(
    distribution: str | None, start: list[str], launcher: str
) -> None:
    conventions = {**CONVENTIONS, "distribution": distribution}
    job = make_cluster_job(command=["train.py"], args=["--quiet"], sagemaker=conventions)
    container = trainer_of(job)
    arguments = ["-e", "5", "--lr", "0.1", "--name", "x y"]
    assert container["args"] == [*start, "train.py", "--quiet", *arguments]
    assert values(container)["DDPJOB_LAUNCHER"] == launcher


def test_script_for_sagemaker_finds_its_folders_and_hyperparameters() -> None:
    job = make_cluster_job(
        command=["train.py"],
        gpusPerWorker=4,
        env=[{"name": "SM_LOG_LEVEL", "value": "10"}],
        sagemaker=CONVENTIONS,
    )
    pod = worker_manifest(job)
    container = trainer(pod)
    found = values(container)
    assert found["SM_CHANNEL_TRAINING"] == "/opt/ml/input/data/training"
    assert found["SM_CHANNELS"] == '["training"]'
    assert found["SM_MODEL_DIR"] == "/opt/ml/model"
    assert found["SM_OUTPUT_DATA_DIR"] == "/opt/ml/output/data"
    assert json.loads(found["SM_HPS"]) == {"lr": 0.1, "e": 5, "name": "x y"}
    assert found["SM_HP_LR"] == "0.1"
    assert found["SM_NUM_GPUS"] == "4"
    assert found["SM_USER_ENTRY_POINT"] == "train.py"
    assert found["SM_LOG_LEVEL"] == "10", "the user's own"
    places = mounts(container)
    assert volume(pod, places["/opt/ml"]) == {"emptyDir": {}}
    assert volume(pod, places["/opt/ml/model"]) == MODEL
    assert volume(pod, places["/opt/ml/input/data/training"]) == DATA


def test_other_jobs_find_nothing_of_sagemaker() -> None:
    found = values(trainer_of())
    assert not [name for name in found if name.startswith("SM_") or name == "PJRT_DEVICE"]


@pytest.mark.parametrize(
    ("file", "resource", "devices", "processes", "variable"),
    [
        ("trainium.yaml", "aws.amazon.com/neuron", "16", "32", "NEURON"),
        ("tpu.yaml", "google.com/tpu", "4", "4", "TPU"),
        ("amd.yaml", "amd.com/gpu", "8", "8", None),
    ],
)
def test_devices_of_others_are_asked_for_and_named(
    file: str, resource: str, devices: str, processes: str, variable: str | None
) -> None:
    text = (EXAMPLES / "15-xla" / file).read_text()
    container = trainer_of(jobfile.parse(text))
    assert container["resources"]["limits"][resource] == devices
    found = values(container)
    assert found.get("PJRT_DEVICE") == variable
    assert found["DDPJOB_PROCESSES"] == processes
    assert found["DDPJOB_LAUNCHER"] == "torchrun"
    assert container["args"] == yaml.safe_load(text)["spec"]["command"]


def test_network_of_a_job_is_asked_for() -> None:
    job = jobfile.parse((EXAMPLES / "17-network" / "efa.yaml").read_text())
    pod = worker_manifest(job)
    container = trainer(pod)
    assert container["resources"]["limits"] == {
        "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5Gi", "memory": "200Gi",
        "nvidia.com/gpu": "8",
    }  # fmt: skip
    found = values(container)
    assert found["FI_PROVIDER"] == "efa"
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
    assert found["NCCL_DEBUG"] == "INFO"
    (near,) = pod["spec"]["affinity"]["podAffinity"].popitem()[1]
    assert near["topologyKey"] == "topology.kubernetes.io/zone"
    assert near["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
