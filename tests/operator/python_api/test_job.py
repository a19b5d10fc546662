"""`ddpjob.Job` as a definition: arguments and files, their mistakes, and what an import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob import InvalidJobError, Job
from ddpjob_operator.api import jobfile

HEAVY = ("aiohttp", "kopf", "kubernetes", "psutil", "torch", "urllib3")
TEXT = """\
apiVersion: ddpjob.io/v1alpha1
kind: DDPJob
metadata: {name: digits, labels: {team: vision}}
spec:
  command: [torchrun, train.py]
  image: trainer
  replicas: 2
  minReplicas: 1
  snapshot: {everySteps: 100}
  extraWorkerGroups: [{name: spot, replicas: 1, processesPerWorker: 2}]
"""


def make_job(**changed: object) -> Job:
    fields: dict[str, object] = {
        "command": ["torchrun", "train.py"],
        "image": "trainer",
        "replicas": 2,
        "labels": {"team": "vision"},
        "min_replicas": 1,
        "snapshot": {"every_steps": 100},
        "extraWorkerGroups": [{"name": "spot", "replicas": 1, "processes_per_worker": 2}],
    }
    return Job("digits", **{**fields, **changed})  # type: ignore[arg-type]


def test_import_loads_neither_torch_nor_a_client() -> None:
    code = f"import sys, ddpjob; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_arguments_define_the_job_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TEXT)
    read, made = Job.from_file(tmp_path / "job.yaml"), make_job()
    assert made.resource.spec == read.resource.spec
    assert (made.name, made.namespace) == (read.name, read.namespace) == ("digits", None)
    assert read.to_yaml() == TEXT
    assert jobfile.parse(made.to_yaml()) == read.resource
    assert "labels:\n    team: vision" in made.to_yaml()
    assert make_job(namespace="ml").namespace == "ml"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"replica": 3}, "spec.replica: unknown field 'replica'; did you mean 'replicas'?"),
        ({"min_replica": 3}, "did you mean 'minReplicas'?"),
        ({"replicas": -1}, "spec.replicas: must be at least 0, not -1"),
        ({"command": "torchrun train.py"}, "spec.command: must be a list: [torchrun, train.py]"),
        ({"command": None}, "spec.command: is missing; give what each worker runs"),
        ({"snapshot": {"every": 1}}, "spec.snapshot.every: unknown field 'every'"),
        ({"min_replicas": 9}, "spec.replicas: is 2, below minReplicas (9)"),
    ],
    ids=str,
)
def test_mistakes_are_those_of_validate(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJobError) as failure:
        make_job(**changed)
    assert message in str(failure.value)
    assert isinstance(failure.value, ValueError)


def test_a_file_with_a_mistake_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(TEXT.replace("replicas: 2", "replica: 2"))
    with pytest.raises(InvalidJobError, match=r"job\.yaml: line 7: spec\.replica: unknown field"):
        Job.from_file(file)
    with pytest.raises(InvalidJobError, match=r"cannot read .*missing\.yaml"):
        Job.from_file(tmp_path / "missing.yaml")


def test_the_job_of_a_file_with_objects_of_other_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n---\n"
    file.write_text(claim + TEXT)
    assert Job.from_file(file).name == "digits"
    note = "job.yaml: skipped PersistentVolumeClaim; only a DDPJob is read\n"
    assert capsys.readouterr().err.endswith(note)
    file.write_text(f"{claim}{TEXT}---\n{TEXT}")
    with pytest.raises(InvalidJobError, match="the file holds 3 documents; give each job a file"):
        Job.from_file(file)


def test_settings_that_are_seldom_intended_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="pins the number"):
        Job("probe", command=["mpirun", "-np", "2", "python", "train.py"], launcher="mpi")


def test_a_wheel_has_the_package_with_its_types(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    root = Path(__file__).resolve().parents[3]
    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
        entries = archive.read(scripts).decode()
    assert {"ddpjob/__init__.py", "ddpjob/py.typed", "ddpjob_operator/py.typed"} <= names
    assert "ddpjob = ddpjob_operator.cli.entry:main" in entries
    assert "kubectl-ddp = ddpjob_operator.cli.entry:main" in entries
