"""`ddpjob.Job.run_local`: real runs from Python, without torch."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest

from ddpjob import Job, JobFailedError, LocalRunError, RunResult
from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.local.simulated.processes import marked
from support.pages import examples, execute

# Trains 20 steps; the file `from` has the step of an earlier run.
SCRIPT = """
    import json, os, pathlib, socket, sys, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    def report(**what):
        agent.sendto(json.dumps(what).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
    if "fail" in sys.argv:
        raise ValueError("no data")
    step = 0
    while step < 20 or "forever" in sys.argv:
        step += 1
        report(event="step", step=step, total=20, metrics={"loss": 1 / step})
        time.sleep(0.05)
"""


def write_script(folder: Path) -> None:
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))


def make_job(folder: Path, what: str = "train") -> Job:
    write_script(folder)
    elastic = {"join_policy": "Immediate", "settle_seconds": 0.2}
    policy = {"max_restarts": {"application": 0}}
    command = ["python3", "train.py", what]
    return Job(
        "probe",
        command=command,
        launcher="python",
        replicas=2,
        elastic=elastic,
        failure_policy=policy,
    )


def run(job: Job, folder: Path, nodes: int | None = None) -> tuple[RunResult, list[str]]:
    lines: list[str] = []
    result = job.run_local(
        state_dir=folder / "state", workdir=folder, nodes=nodes, on_line=lines.append
    )
    return result, lines


def test_a_run_beside_a_running_event_loop_returns_its_result(tmp_path: Path) -> None:
    async def cell() -> tuple[RunResult, list[str]]:
        return run(make_job(tmp_path), tmp_path, nodes=2)

    result, lines = asyncio.run(cell())
    assert lines[0].startswith("job probe: 2 workers, 2 nodes, state in ")
    assert "Complete" in lines[-1]
    assert (result.state, result.exit_code, result.step) == ("Complete", 0, 20)
    assert result.metrics == {"loss": 0.05}
    assert result.check() is result
    steps, losses = zip(*result.curve("loss"), strict=True)
    assert list(losses) == [1 / step for step in steps]
    assert result.timeline[0]["kind"] == "started"
    assert result.folder == tmp_path / "state" / "default" / "probe"


def test_a_failed_run_has_its_reason(tmp_path: Path) -> None:
    result, _ = run(make_job(tmp_path, "fail"), tmp_path)
    assert (result.state, result.exit_code) == ("Failed", 1)
    with pytest.raises(JobFailedError, match="ValueError: no data") as failure:
        result.check()
    assert failure.value.reason == "ApplicationFailed"


def test_a_run_that_cannot_start_raises_the_message_of_the_command(tmp_path: Path) -> None:
    job = Job("probe", command=["missing"], launcher="python")
    with pytest.raises(LocalRunError, match="there is no program 'missing'") as failure:
        run(job, tmp_path)
    assert failure.value.exit_code == ExitCode.INVALID


def test_an_interrupt_stops_the_job_and_all_of_its_processes(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if "is the first step" in line:
            raise KeyboardInterrupt

    job = make_job(tmp_path, "forever")
    state = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt):
        job.run_local(state_dir=state, workdir=tmp_path, on_line=interrupt)
    assert marked((state / "default" / "probe" / "uid").read_text()) == []


def test_the_page_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_script(tmp_path)
    page = "docs/python.md"
    (tmp_path / "digits.yaml").write_text(Job("digits", command=["torchrun", "train.py"]).to_yaml())
    variables = execute(*examples(page, "Define a job"), *examples(page, "On this machine"))
    result = variables["result"]
    assert isinstance(result, RunResult)
    assert [entry["kind"] for entry in result.timeline if entry["kind"] == "chaos"] == ["chaos"]
    printed = capsys.readouterr().out
    assert "name: spot" in printed
    assert "Complete 0 20 {'loss': 0.05}\n" in printed
    assert printed.endswith("\n20 0.05\n")
