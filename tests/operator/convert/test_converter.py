"""Jobs of Kubeflow as DDPJobs: what is carried over, and what is only a comment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.testing
import yaml

from ddpjob_operator.api import jobfile
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.main import app
from ddpjob_operator.convert import converter
from ddpjob_operator.convert.commands import convert_command
from ddpjob_operator.convert.fields import ConvertError

FILES = Path(__file__).parent / "files"
ALL = sorted(path.stem for path in FILES.glob("*.yaml"))


def converted(name: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """The job of a file, the reasons by path, and the text."""
    [found], _ = converter.convert((FILES / f"{name}.yaml").read_text())
    text = found.to_yaml()
    assert yaml.safe_load(text) == found.job
    return found.job, dict(found.notes), text


@pytest.mark.parametrize("name", ALL)
def test_the_result_is_valid(name: str) -> None:
    _, _, text = converted(name)
    jobfile.parse(text)


@pytest.mark.parametrize("name", ALL)
def test_every_note_is_a_comment(name: str) -> None:
    _, notes, text = converted(name)
    comments = " ".join(line.strip("# ") for line in text.splitlines() if line.startswith("#"))
    assert notes
    for path, reason in notes.items():
        assert f"- {path}: {reason}" in comments


def test_an_elastic_job() -> None:
    job, notes, _ = converted("elastic")
    assert job["metadata"] == {
        "name": "speech-model",
        "namespace": "ml-team",
        "labels": {"team": "speech"},
        "annotations": {"owner": "ann"},
    }
    template = job["spec"].pop("template")
    assert job["spec"] == {
        "image": "registry.example.com/speech:7",
        "command": "torchrun train.py --nnodes 7 --epochs 90".split(),
        "replicas": 4,
        "minReplicas": 2,
        "maxReplicas": 6,
        "processesPerWorker": 8,
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        ],
        "resources": {"requests": {"cpu": 8}, "limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}},
        "failurePolicy": {"maxRestarts": {"application": 10}},
        "activeDeadlineSeconds": 86400,
        "ttlSecondsAfterFinished": 3600,
        "keepPods": "All",
    }
    pod = template["spec"]
    assert template["metadata"] == {"annotations": {"sidecar.istio.io/inject": "false"}}
    assert pod["containers"] == [
        {
            "name": "trainer",
            "imagePullPolicy": "Always",
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        },
        {"name": "metrics", "image": "exporter:2"},
    ]
    assert pod["priorityClassName"] == "high"
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert pod.keys() == {
        "containers", "initContainers", "nodeSelector", "priorityClassName", "serviceAccountName",
        "tolerations", "volumes",
    }  # fmt: skip
    worker = "spec.pytorchReplicaSpecs.Worker.template.spec"
    assert notes.keys() == {
        "metadata.name",
        f"{worker}.restartPolicy",
        f"{worker}.containers[1].env.MASTER_PORT",
        f"{worker}.containers.command",
        "spec.elasticPolicy.rdzvBackend",
        "spec.elasticPolicy.metrics",
        "spec.runPolicy.schedulingPolicy.minAvailable",
        "spec.runPolicy.schedulingPolicy.queue",
    }


def test_a_job_of_a_fixed_size_keeps_it() -> None:
    job, notes, _ = converted("fixed")
    assert job["spec"] == {
        "image": "mnist:1",
        "launcher": "python",
        "command": ["python3", "/opt/mnist.py", "--backend=gloo"],
        "replicas": 3,
        "minReplicas": 3,
        "processesPerWorker": "auto",
        "gpuResource": "amd.com/gpu",
        "resources": {"limits": {"amd.com/gpu": 1}},
    }
    assert "lower minReplicas to make it elastic" in notes["spec"]


def test_what_holds_for_master_and_worker_is_one_note() -> None:
    text = (FILES / "fixed.yaml").read_text()
    [found], _ = converter.convert(text.replace("[python3,", "[torchrun, --nnodes=3,"))
    specs = "spec.pytorchReplicaSpecs"
    about_groups = [path for path, _ in found.notes if path.startswith(specs)]
    assert about_groups == [f"{specs}.Worker.template.spec.containers.command", f"{specs}.Master"]


def test_a_master_that_differs_is_a_group_of_its_own() -> None:
    job, notes, _ = converted("two-kinds")
    worker = job["spec"]
    assert worker["command"] == ["bash", "-c", "pip install x && torchrun --nnodes=4 train.py"]
    assert worker["failurePolicy"] == {"maxRestarts": {"application": 0}}
    [master] = worker["extraWorkerGroups"]
    [container] = master["template"]["spec"]["containers"]
    assert (master["name"], master["replicas"], master["minReplicas"]) == ("master", 1, 1)
    assert container["image"] == "bert:1"
    assert container["env"] == [{"name": "A", "value": "b"}]
    path = "spec.pytorchReplicaSpecs"
    missing = notes[f"{path}.Master.template.spec.containers.command"]
    assert "the entry point of the image is not in the file. Write the command" in missing
    assert missing.endswith("then its arguments ['--tensorboard']")
    assert "pins the number of workers" in notes[f"{path}.Worker.template.spec.containers.command"]
    assert notes["spec.unheard"] == "a DDPJob has no such field"


def test_exit_codes_that_are_permanent_fail_the_job() -> None:
    text = (FILES / "elastic.yaml").read_text()
    [found], _ = converter.convert(
        text.replace("restartPolicy: OnFailure", "restartPolicy: ExitCode", 1)
    )
    policy = jobfile.parse(found.to_yaml()).spec.failure_policy
    [rule] = (each.to_protocol() for each in policy.rules)
    matched = [code for code in (1, 127, 128, 137) if rule.matches(code, "")]
    assert (rule.action, matched, policy.max_restarts.application) == ("FailJob", [1, 127], 10)


def test_a_train_job() -> None:
    job, notes, _ = converted("trainjob")
    spec = job["spec"]
    assert spec["command"] == ["python", "-m", "torch.distributed.run", "-m", "llm.train"]
    assert (spec["args"], spec["replicas"], spec["minReplicas"]) == (["--lr=1e-4"], 4, 4)
    assert spec["processesPerWorker"] == "auto"
    assert spec["env"] == [
        {"name": "KEPT", "value": "1"},
        {"name": "WANDB", "value": "online"},
    ]
    template = spec["template"]
    assert template["metadata"] == {"annotations": {"a": "b"}, "labels": {"team": "llm"}}
    assert template["spec"]["containers"] == [
        {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    ]
    assert [each["name"] for each in template["spec"]["volumes"]] == ["data", "tmp"]
    assert template["spec"]["nodeSelector"] == {"zone": "east"}
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert "ClusterTrainingRuntime torch-distributed is another object" in notes["spec.runtimeRef"]
    assert "for dataset-initializer" in notes["spec.podTemplateOverrides[0]"]
    assert "spec.initializer" in notes


def test_patches_of_the_runtime() -> None:
    """Kubeflow Trainer merges them one after the other; tolerations have no key, and are replaced."""
    job, notes, _ = converted("runtime-patches")
    spec = job["spec"]
    assert job["metadata"] == {
        "name": "speech",
        "labels": {"tier": "gpu", "team": "ml", "kueue.x-k8s.io/queue-name": "research"},
        "annotations": {"prometheus.io/scrape": "true"},
    }
    assert spec["activeDeadlineSeconds"] == 7200
    assert spec["template"] == {
        "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "containers": [
                {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
            ],
            "serviceAccountName": "training-sa",
            "nodeSelector": {"node-type": "training", "zone": "east"},
            "securityContext": {"runAsUser": 1000},
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "tmp", "emptyDir": {}},
            ],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "schedulingGates": [{"name": "kueue.x-k8s.io/topology"}],
        },
    }
    jobs = "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs"
    pod = f"{jobs}[1].template.spec.template.spec"
    assert "for dataset-initializer" in notes[f"{jobs}[0]"]
    reason = notes[f"{pod}.initContainers[0]"]
    assert "write the whole container. It has {volumeMounts: [{mountPath: /data" in reason
    assert "env: [{name: A, value: b}]" in notes[f"{pod}.containers[1]"]


def test_a_job_that_kueue_resumes_is_not_suspended() -> None:
    job, notes, _ = converted("runtime-patches")
    assert "suspend" not in job["spec"]
    assert "nothing would resume it" in notes["spec.suspend"]


@pytest.mark.parametrize(
    ("words", "kept", "launcher", "processes"),
    [
        ("torchrun --nnodes 2 --nproc-per-node=4 a.py", "torchrun a.py", "torchrun", "4"),
        ("torchrun --standalone -m pkg.train", "torchrun -m pkg.train", "torchrun", ""),
        ("torchrun --role x a.py --nnodes 2", "torchrun --role x a.py --nnodes 2", "torchrun", ""),
        ("/opt/bin/torchrun --no-python run", "/opt/bin/torchrun --no-python run", "torchrun", ""),
        (
            "python -m torch.distributed.launch --node_rank=0 a.py",
            "python -m torch.distributed.launch a.py",
            "torchrun",
            "",
        ),
        ("python a.py --nnodes 2", "python a.py --nnodes 2", "python", ""),
        ("mpirun -np 2 python a.py", "mpirun -np 2 python a.py", "mpi", ""),
    ],
)
def test_flags_that_ddpjob_sets_are_removed(
    words: str, kept: str, launcher: str, processes: str
) -> None:
    found = convert_command(words.split())
    assert (" ".join(found.words), found.launcher, found.processes) == (kept, launcher, processes)


WORKER = "spec: {pytorchReplicaSpecs: {Worker: {replicas: %s, template: %s}}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file has no PyTorchJob"),
        ("a: [", "line 1, column 5: expected the node content"),
        ("kind: Pod\nmetadata: {name: p}", "but Pod p; give a file with such a job"),
        ("- a", "not a mapping"),
        ("a: " + "[" * 150 + "]" * 150, "the file is nested too deeply"),
        ("a: &a [*a]", "an alias (*name) stands inside of what it stands for"),
        ("a: !!bool x", "'x' is not true or false"),
        ("kind: List\nitems: 5", "items: must be a list, not 5"),
        (WORKER % ("2", "{spec: {containers: [{command: 5}]}}"), "command: must be a list, not 5"),
        (WORKER % ("2", "{spec: {containers: [{args: x}]}}"), "args: must be a list, not 'x'"),
        (WORKER % ("2", "{spec: {containers: [{1: x}]}}"), "the key 1 must be text"),
        (
            WORKER % ("2", "{spec: {containers: [{resources: {limits: 5}}]}}"),
            "resources.limits: must be a mapping, not int",
        ),
        (WORKER % ("two", "{}"), "replicas: must be a whole number, not 'two'"),
        (WORKER % ("2", "{}"), "Worker.template: is missing"),
        (WORKER % ("2", "{spec: {containers: []}}"), "containers: is empty"),
        (WORKER % ("2", "{spec: {containers: [7]}}"), "must be a mapping, not int"),
        ("spec: {}", "has no Worker and no Master"),
    ],
)
def test_what_cannot_be_converted_is_explained(text: str, message: str) -> None:
    if text.startswith("spec:"):
        text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: a}}\n{text}"
    with pytest.raises(ConvertError) as error:
        converter.convert(text)
    assert message in str(error.value)


def test_labels_that_are_no_mapping_are_explained() -> None:
    text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a, labels: 5}\n"
    with pytest.raises(ConvertError, match=r"metadata\.labels: must be a mapping, not int"):
        converter.convert(text)


def test_the_command(tmp_path: Path) -> None:
    run = typer.testing.CliRunner()
    done = run.invoke(app, ["convert", str(FILES / "fixed.yaml")])
    assert done.exit_code == ExitCode.OK
    assert done.stdout.startswith("# From PyTorchJob mnist, by ddpjob convert.\n")
    assert done.stderr.endswith("fields need your attention; see the comments\n")
    (tmp_path / "job.yaml").write_text(done.stdout)
    assert run.invoke(app, ["validate", str(tmp_path / "job.yaml")]).exit_code == ExitCode.OK
    error = run.invoke(app, ["convert", str(tmp_path / "job.yaml")]).exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.INVALID
