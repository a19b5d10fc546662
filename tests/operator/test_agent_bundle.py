"""The agent as one file, started by a Python that is too old for it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_operator.agent_bundle import MAIN, build_agent

START = """
import runpy, sys
sys.version_info = ({version}, 18, "final", 0)
runpy.run_path({agent!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("agent") / "agent.pyz"
    build_agent(target)
    return target


@pytest.mark.parametrize("version", ["3, 8", "3, 6", "2, 7"])
def test_python_that_is_too_old_is_named_with_the_remedy(agent: Path, version: str) -> None:
    program = START.format(version=version, agent=str(agent))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"ddpjob-agent: {sys.executable} is Python {version.replace(', ', '.')}; the agent needs"
        " python3 from 3.9 on. Add it to the image, as the first python3 on PATH, or use another"
        " image\n"
    )


def test_first_file_is_one_that_an_old_python_can_read() -> None:
    tree = ast.parse(MAIN, feature_version=(3, 4))
    modern = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef)
    assert not [node for node in ast.walk(tree) if isinstance(node, modern)]
