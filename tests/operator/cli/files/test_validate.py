"""`ddpjob validate`: files, folders, stdin, documents of other kinds, and formats of the result."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import in_process

HEAD = "apiVersion: ddpjob.io/v1alpha1\nkind: DDPJob\nmetadata: {name: NAME}\nspec:\n"
GOOD = HEAD + "  image: my/trainer\n  replicas: 2\n  command: [torchrun, train.py]\n"
BAD = GOOD + "  replica: 3\n"
LOCAL = HEAD + "  replicas: 2\n  command: [torchrun, train.py]\n"
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"
NO_IMAGE = "line 4: spec.image: is missing"
FROM = "  env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]\n"

UNKNOWN = """\
template.metadata.lables: unknown field 'lables'; did you mean 'labels'?
nodeSelectr: unknown field 'nodeSelectr'; did you mean 'nodeSelector'?
containers as 'volumeMounts'
containers
containers[0].imag: unknown field 'imag'; did you mean 'image'?
template.spec
initContainers[0].zzz: unknown field 'zzz' in Kubernetes 1.34; remove it, unless the cluster's is newer and has it
tolerationz: unknown field 'tolerationz'; did you mean 'tolerations'?
"""  # after the last part of a path that is a spec

Validate = Callable[..., tuple[object, str]]


@pytest.fixture
def validate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Validate:
    """Run the command beside these files; return its exit code and output."""

    def run(*arguments: str, stdin: str = "", **files: str) -> tuple[object, str]:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yaml", ".yaml")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("NAME", path.stem))
            (path.parent / "train.py").touch()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        return in_process(tmp_path, monkeypatch, capsys, "validate", *arguments)

    return run


def test_several_files_and_stdin(validate: Validate) -> None:
    code, said = validate(
        "a.yaml", "-f", "b.yaml", "-", a_yaml=GOOD, b_yaml=BAD, stdin=LOCAL.replace("NAME", "c")
    )
    assert code == ExitCode.INVALID
    assert "a.yaml: DDPJob default/a is valid (worker: 2 x 1)\n" in said
    assert "b.yaml: line 8: spec.replica: unknown field 'replica'; did you mean 'replicas'?" in said
    assert f"stdin: warning: {NO_IMAGE}" in said


def test_all_documents_and_their_lines(validate: Validate) -> None:
    code, said = validate("all.yaml", all_yaml=f"{GOOD}---\n{CLAIM}---\n{BAD}")
    assert code == ExitCode.INVALID
    assert "all.yaml: skipped a PersistentVolumeClaim; only a DDPJob is checked\n" in said
    assert "all.yaml: line 20: spec.replica: " in said
    assert "DDPJob default/all is valid" in said


def test_a_folder_stands_for_the_jobs_in_it(validate: Validate) -> None:
    files = {"jobs__a_yaml": GOOD, "jobs__claim_yaml": CLAIM, "jobs__values_yaml": "replicas: 1\n"}
    code, said = validate("jobs", **files)
    assert code == ExitCode.OK
    assert "jobs/a.yaml: DDPJob default/a is valid" in said
    assert "values" not in said
    code, said = validate("jobs", jobs__b_yaml=BAD)
    assert code == ExitCode.INVALID
    assert "jobs/b.yaml: line 8: " in said


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        pytest.param(("a.yaml",), "", "a.yaml: the file is empty; write a DDPJob", id="empty"),
        pytest.param(("a.yaml",), CLAIM, "no file has a DDPJob; give a file with one", id="none"),
        pytest.param((), GOOD, "no file is given; give job files, folders or -", id="no_file"),
        pytest.param(("b.yaml",), GOOD, "cannot read b.yaml: No such file", id="no_such_file"),
    ],
)
def test_nothing_to_check(
    validate: Validate, arguments: tuple[str, ...], text: str, said: str
) -> None:
    code, printed = validate(*arguments, a_yaml=text)
    assert code == ExitCode.INVALID
    assert said in printed


@pytest.mark.parametrize(
    ("options", "text", "code", "said"),
    [
        pytest.param("", LOCAL, ExitCode.OK, f"a.yaml: warning: {NO_IMAGE}, so", id="either"),
        pytest.param("--for cluster", LOCAL, ExitCode.INVALID, f"a.yaml: {NO_IMAGE};", id="image"),
        pytest.param("--for local -q", LOCAL, ExitCode.OK, "", id="local"),
        pytest.param("--for cluster -q", GOOD, ExitCode.OK, "", id="cluster"),
        pytest.param(
            "--for local",
            GOOD + FROM,
            ExitCode.INVALID,
            "a.yaml: line 8: spec.env[0].valueFrom: needs a cluster; give value instead",
            id="value_from",
        ),
        pytest.param("-q", LOCAL, ExitCode.OK, "", id="quiet"),
        pytest.param("-q", BAD, ExitCode.INVALID, "a.yaml: line 8: spec.replica", id="quiet_error"),
        pytest.param("--for moon", GOOD, ExitCode.INVALID, "'--for'", id="no_such_back_end"),
    ],
)
def test_back_ends_and_quiet(
    validate: Validate, options: str, text: str, code: ExitCode, said: str
) -> None:
    found, printed = validate("a.yaml", *options.split(), a_yaml=text)
    assert found == code
    assert said in printed
    assert said or not printed


def test_unknown_fields_of_a_template_are_warnings(validate: Validate) -> None:
    text = """\
  template:
    metadata: {lables: {a: b}, labels: {}, $patch: replace}
    spec:
      nodeSelectr: {gpu: t4}
      volume_mounts: []
      imagePullPolicy: Always
      nodeSelector: null
      containers:
      - {name: trainer, imag: a, tolerations: [], resources: {}}
      initContainers: [{name: a, image: b, restartPolicy: Always, zzz: 1}]
  extraWorkerGroups:
  - {name: a, replicas: 1, template: {spec: {tolerationz: []}}}
"""
    code, said = validate("a.yaml", "--for", "cluster", a_yaml=GOOD + text)
    warnings = [each.rpartition("spec.")[2] for each in said.splitlines() if "warning" in each]
    assert warnings == UNKNOWN.splitlines()
    assert "volume_mounts: unknown field 'volume_mounts' here; it belongs to spec.template." in said
    assert "line 16: spec.template.spec.containers[0].imag: unknown field 'imag'" in said
    assert code == ExitCode.OK


def test_problems_for_programs(validate: Validate) -> None:
    text = BAD.replace("  image: my/trainer\n", "")
    _, printed = validate("-o", "json", "a.yaml", "b.yaml", a_yaml=text, b_yaml=LOCAL)
    result: dict[str, Any] = json.loads(printed)
    assert result == {
        "valid": False,
        "jobs": [
            {
                "file": "b.yaml",
                "namespace": "default",
                "name": "b",
                "groups": [{"name": "worker", "replicas": 2, "processes": 1}],
            }
        ],
        "problems": [
            {
                "file": "a.yaml",
                "line": 7,
                "path": "spec.replica",
                "message": "unknown field 'replica'",
                "remedy": "did you mean 'replicas'?",
                "severity": "error",
            },
            {
                "file": "b.yaml",
                "line": 4,
                "path": "spec.image",
                "message": "is missing, so the job runs with `ddpjob run --local` only",
                "remedy": None,
                "severity": "warning",
            },
        ],
    }


def test_a_missing_script_is_a_warning(validate: Validate) -> None:
    text = LOCAL.replace("train.py", "trian.py")
    for options, is_found in (("", True), ("--for local", True), ("--for cluster", False)):
        _, printed = validate("a.yaml", *options.split(), a_yaml=text)
        assert (
            "a.yaml: warning: spec.command: there is no script 'trian.py'" in printed
        ) is is_found


def test_a_number_with_a_fraction_needs_quotes_for_kubectl_only(validate: Validate) -> None:
    text = GOOD + "  resources:\n    limits:\n      cpu: 0.5\n      memory: 2.0\n"
    code, printed = validate("a.yaml", a_yaml=text)
    assert code == ExitCode.OK
    (warning,) = (line for line in printed.splitlines() if "warning" in line)
    assert warning == (
        "a.yaml: warning: line 10: spec.resources.limits.cpu: is 0.5 without quotes, which only "
        '`ddpjob apply` accepts; write "0.5" for kubectl'
    )
