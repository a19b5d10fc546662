"""The table of commands: all can be loaded, have help with an example, and are imported late."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.testing

from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.cli.main import COMMANDS, app, main
from support.http_server import kubeconfig

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"aiohttp", "kopf", "kubernetes", "psutil", "pydantic", "yaml", "urllib3", "asyncio"}


def run(*arguments: str) -> typer.testing.Result:
    # A fixed width: the terminal of the test may be narrow.
    return typer.testing.CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"snapshots"}))
def test_help_of_a_command_has_its_purpose_and_an_example(name: str) -> None:
    done = run(name, "-h")
    assert done.exit_code == ExitCode.OK, done.output
    assert COMMANDS[name].help in done.output
    assert f"Example: {COMMANDS[name].example}" in done.output


def test_help_lists_all_commands() -> None:
    done = run("--help")
    assert [name for name in COMMANDS if not re.search(rf"│ {name} +│?", done.output)] == []


def test_help_and_version_import_no_package_of_a_command() -> None:
    code = f"""
import sys
import tomllib
from ddpjob_operator.cli.main import app
for argument in ("--help", "--version"):
    try:
        app([argument])
    except SystemExit as end:
        assert not end.code
print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_ask_the_command(shell: str) -> None:
    assert f"_DDPJOB_COMPLETE=complete_{shell}" in run("completion", shell).output


def test_as_a_plugin_it_has_the_name_of_the_plugin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("ddp", "ddpjob"):
        assert scripts[f"kubectl-{name}"] == scripts["ddpjob"]
        assert scripts[f"kubectl_complete-{name}"] == (
            "ddpjob_operator.cli.kubectl_completion:main"
        )
        monkeypatch.setattr("sys.argv", [f"/bin/kubectl-{name}", "get", "-h"])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        assert f"Usage: kubectl {name} get" in capsys.readouterr().out


def test_options_before_a_command_without_them_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ddpjob", "-n", "team", "run", "--local", "job.yaml"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == ExitCode.INVALID
    assert capsys.readouterr().err.startswith("run has no option --namespace; ")


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["vers"], ["version\tPrint the version."]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["get", "--out"], ["--output\tForm."]),
        (["get", "-o", "y"], ["yaml"]),
        (["explain", "WorkerS"], ["WorkerSilent"]),
    ],
)
def test_kubectl_completes_the_plugin(words: list[str], candidates: list[str]) -> None:
    assert _completed(*words) == [*candidates, ":4"]


def test_without_candidates_files_are_completed(tmp_path: Path) -> None:
    """Nothing else is printed if the cluster cannot be asked."""
    assert _completed("validate", "job.y") == [":0"]
    config = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    assert _completed("describe", "--kubeconfig", config, "di") == [":0"]


def _completed(*words: str) -> list[str]:
    code = "from ddpjob_operator.cli.kubectl_completion import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_an_unknown_command_names_a_near_one() -> None:
    done = run("gett")
    assert done.exit_code == ExitCode.INVALID
    assert "Did you mean 'get'?" in done.output


def test_a_reason_is_explained_with_its_remedy() -> None:
    done = run("explain", "workersilent")
    assert done.exit_code == ExitCode.OK
    head, cause, *_ = done.output.splitlines()
    assert head == "WorkerSilent (reason of a condition and a warning)"
    assert cause.startswith("cause:  The pod of a worker is Running, but the rendezvous service")
    assert "\nremedy: Look at the node and at its network." in done.output
    assert "docs/reasons.md#workersilent\n" in done.output


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("failurePolicy.maxRestarts", "spec.failurePolicy.maxRestarts (object)\n"),
        ("spec.failurePolicy.maxRestarts", "  fields: application, infrastructure\n"),
        ("replicas", "spec.replicas (integer, 0 to "),
        ("extraWorkerGroups[].name", "spec.extraWorkerGroups.name (string, required)\n"),
        ("everySteps", "spec.snapshot.everySteps (integer, at least 1)\n"),
    ],
)
def test_a_field_is_explained_by_its_path_or_its_name(word: str, expected: str) -> None:
    done = run("explain", word)
    assert done.exit_code == ExitCode.OK
    assert expected in done.output


def test_an_unknown_word_has_near_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for word, near in {"WorkerSilnt": "WorkerSilent", "maxRestart": "maxRestarts"}.items():
        monkeypatch.setattr("sys.argv", ["ddpjob", "explain", word])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == ExitCode.INVALID
        said = capsys.readouterr().err
        assert said.startswith(f"'{word}' is neither a reason nor a field of a job; did you mean")
        assert f" {near}" in said
    monkeypatch.setattr("sys.argv", ["ddpjob", "explain", "stalled"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.startswith("stalled is a state; `ddpjob describe JOB` names")


def test_every_exit_code_is_explained() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text().partition("## The agent")[0]
    table = dict(re.findall(r"^\| (\d+) \| (\w+) \|", page, re.MULTILINE))
    assert table == {str(code.value): code.name for code in ExitCode}
