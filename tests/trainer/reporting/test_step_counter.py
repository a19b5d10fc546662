"""The steps of processes, left for their agent to read when the processes have ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ddpjob_agent.worker.launch import STEPS_FILE, recorded_steps
from ddpjob_protocol.environment import ENV_STEPS
from ddpjob_trainer import Snapshots, step_done
from support.forked import Forks

KILLED = """
import os, signal
from ddpjob_trainer import step_done
for step in range(1, int(os.environ["STEPS"]) + 1):
    step_done(step)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def steps_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ENV_STEPS, str(tmp_path / STEPS_FILE))
    return tmp_path


def test_what_killed_processes_had_done(
    forks: Forks, steps_file: Path, python_env: dict[str, str]
) -> None:
    """The most steps of any process: one that is killed within a step may be one behind."""
    script = steps_file / "killed.py"
    script.write_text(KILLED)
    for local_rank, steps in ((1, 41), (0, 40)):
        own = {"LOCAL_RANK": str(local_rank), "STEPS": str(steps)}
        assert forks.start(script, env={**python_env, **own}).wait() == -signal.SIGKILL
    assert max(recorded_steps(str(steps_file))) == 41


def test_a_call_of_due_reports_the_step_too(steps_file: Path) -> None:
    Snapshots(steps_file / "snapshots").due(7)
    assert max(recorded_steps(str(steps_file))) == 7


def test_the_newest_word_counts_and_each_start_has_a_file_of_its_own(
    steps_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (5, 300, 6):
        step_done(step)
    other = steps_file / "other"
    other.mkdir()
    assert recorded_steps(str(other)) == []
    monkeypatch.setenv(ENV_STEPS, str(other / STEPS_FILE))
    step_done(6)
    assert (max(recorded_steps(str(steps_file))), max(recorded_steps(str(other)))) == (6, 6)


def test_if_it_cannot_be_left_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_STEPS, str(tmp_path / "missing" / STEPS_FILE))
    step_done(1)
    monkeypatch.setenv(ENV_STEPS, os.devnull)
    step_done(-1)
    assert recorded_steps(str(tmp_path / "missing")) == []
