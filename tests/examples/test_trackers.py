"""Trackers see one run with one curve, however often the workers of a job are killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from support.examples_env import run_own_python, run_python
from support.pages import examples
from support.playing import EXAMPLES

STANDINS = Path(__file__).parent / "standins"
# Prints all runs: tags, status and the steps and values of each metric.
READ_MLFLOW = """
import json, mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
client, found = mlflow.MlflowClient(), []
for run in mlflow.search_runs(search_all_experiments=True, output_format="list"):
    history = {
        name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    found.append({"tags": run.data.tags, "status": run.info.status, "history": history})
print(json.dumps(found))
"""


def copy(folder: Path, *changes: tuple[str, str, str]) -> None:
    """The example, with changes: a file, an old and a new text."""
    shutil.copytree(EXAMPLES / "trackers", folder, dirs_exist_ok=True)
    for name, old, new in changes:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))


def run_local(python: Callable[..., str], folder: Path, file: str, chaos: str, nodes: int) -> str:
    """The UID of a job that ran to its end, with all faults injected."""
    command = ("-m", "ddpjob", "run", "--local", file, "--chaos", chaos, "--nodes", nodes)
    output = python(folder, *command)
    state = folder / ".ddpjob" / "default" / "tracked"
    entries = [json.loads(line) for line in (state / "timeline.jsonl").read_text().splitlines()]
    # kills that follow each other closely may share one change of the membership
    kills = [entry for entry in entries if entry["text"].startswith("kill on node-")]
    assert len(kills) == len(chaos.split(",")), output
    assert any(entry["kind"] == "lost" for entry in entries), output
    return (state / "uid").read_text()


def test_a_job_killed_three_times_is_one_mlflow_run_with_one_curve(tmp_path: Path) -> None:
    copy(tmp_path, ("mlflow.yaml", "replicas: 2", "replicas: 4"))
    chaos = "kill:node-0=25%,kill=50%,kill=75%"  # the first one ends rank 0
    uid = run_local(run_python, tmp_path, "mlflow.yaml", chaos, nodes=4)
    (run,) = json.loads(run_python(tmp_path, "-c", READ_MLFLOW).splitlines()[-1])
    assert run["tags"]["ddpjob_uid"] == uid
    assert run["status"] == "FINISHED"
    assert sorted(run["history"]) == ["loss", "rate"]
    for name, points in run["history"].items():
        steps, values = zip(*points, strict=True)
        assert list(steps) == list(range(1, 201)), name
        if name == "rate":
            assert all(after < before for before, after in pairwise(values))
        else:
            assert sum(values[-20:]) < 0.5 * sum(values[:20])


def test_a_wandb_run_is_resumed_by_rank_0_alone(tmp_path: Path) -> None:
    copy(tmp_path, ("train.py", "STEPS = 200", "STEPS = 60"))
    shutil.copy(STANDINS / "wandb.py", tmp_path)
    uid = run_local(run_own_python, tmp_path, "wandb.yaml", "kill:node-0=50%", nodes=2)
    recorded = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    assert {call["rank"] for call in recorded} == {"0"}
    begun = [call for call in recorded if "init" in call]
    assert len(begun) >= 2, "the processes have started again"
    assert {(call["id"], call["resume"]) for call in begun} == {(uid, "allow")}
    losses: dict[int, list[float]] = {}
    for call in recorded:
        if "step" in call:
            losses.setdefault(call["step"], []).append(call["metrics"]["loss"])
    assert sorted(losses) == list(range(1, 61))
    for values in losses.values():  # a repeated step has the same loss, on fewer workers, too
        assert values == pytest.approx(values[:1] * len(values), rel=1e-4)


def test_tensorboard_hides_the_steps_that_are_done_again(tmp_path: Path) -> None:
    (snippet,) = examples("docs/trackers.md", "TensorBoard")
    (tmp_path / "snippet.py").write_text(snippet)
    script = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
snippet, train = open("snippet.py").read(), lambda step: 100 + step
for start, steps in ((0, 10), (6, 12)):
    exec(snippet)
    writer.close()
found = EventAccumulator("runs").Reload()
print([(each.step, each.value) for each in found.Scalars("loss")])
"""
    printed = run_python(tmp_path, "-c", script).splitlines()[-1]
    assert printed == str([(step + 1, 100.0 + step) for step in range(12)])
