"""The streams of a start: a rank for each line where torchrun or the launcher gives one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ddpjob_agent.output import streams
from ddpjob_agent.output.plan import OutputPlan, plan_output
from ddpjob_protocol.environment import ENV_FIRST_RANK, Launcher

ALONE = {"RANK": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", ENV_FIRST_RANK: "3"}


def plan(
    folder: Path,
    command: str,
    launcher: Launcher,
    *,
    python: str = "/bin/python",
    **environment: str,
) -> OutputPlan:
    return plan_output(command.split(), environment, launcher, 2, str(folder), python)


@pytest.mark.parametrize(
    ("launcher", "environment", "rank", "has_first"),
    [
        pytest.param(Launcher.PYTHON, ALONE, 3, False, id="one process"),
        pytest.param(Launcher.PYTHON, {"RANK": "1", ENV_FIRST_RANK: "4"}, None, False, id="spawns"),
        pytest.param(Launcher.PYTHON, {"RANK": "0", ENV_FIRST_RANK: "0"}, None, True, id="first"),
        pytest.param(Launcher.MPI, {}, None, True, id="mpirun collects the output of all ranks"),
    ],
)
def test_launchers_without_torchrun(
    tmp_path: Path,
    launcher: Launcher,
    environment: dict[str, str],
    rank: int | None,
    has_first: bool,
) -> None:
    found = plan(tmp_path, "python3 train.py", launcher, python="", **environment)
    assert (found.ranks, found.rank, found.has_first) == (0, rank, has_first)
    assert found.shows_command
    assert found.environment == {"PYTHONUNBUFFERED": "1"}


def test_torchrun_has_two_fifos_for_each_rank(tmp_path: Path) -> None:
    found = plan(tmp_path, "torchrun train.py --tee -r 3", Launcher.TORCHRUN)
    assert (found.ranks, found.shows_command) == (2, False)
    for rank in range(2):
        for stream in streams.STREAMS:
            mode = Path(streams.path_of(found.folder, rank, stream)).stat().st_mode
            assert stat.S_ISFIFO(mode)
    assert os.access(found.environment[streams.ENV_PYTHON], os.X_OK)


@pytest.mark.parametrize(
    ("command", "python", "environment"),
    [
        pytest.param("torchrun --tee 3 train.py", "/p", {}, id="tee"),
        pytest.param("torchrun --redirects=3 train.py", "/p", {}, id="redirects"),
        pytest.param("torchrun -r 3 train.py", "/p", {}, id="short"),
        pytest.param("torchrun --no_python ./train", "/p", {}, id="no Python"),
        pytest.param("torchrun train.py", "/p", {"PET_TEE": "3"}, id="variable"),
        pytest.param("torchrun train.py", "/p", {"PYTHON_EXEC": "mine"}, id="own interpreter"),
        pytest.param("bash run.sh", "", {}, id="torchrun is inside"),
    ],
)
def test_torchrun_with_output_of_its_own_shares_the_streams_of_the_command(
    tmp_path: Path, command: str, python: str, environment: dict[str, str]
) -> None:
    found = plan(tmp_path, command, Launcher.TORCHRUN, python=python, **environment)
    assert found == OutputPlan()
    assert found.shows_command
