"""Programs of .venv-examples, which tools/extra_env.sh makes: Jupyter, MLflow, TensorBoard."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER
from support.driving import environment

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-examples" / "bin" / "python"


def run_python(folder: Path, *arguments: object) -> str:
    """The output of a Python that must succeed, in a folder."""
    # that of the tests has imported torch in another environment
    kept = {name: value for name, value in os.environ.items() if name != ENV_FORKSERVER}
    return _succeed([PYTHON, *arguments], folder, kept)


def run_own_python(folder: Path, *arguments: object) -> str:
    """The same by the Python of the tests, whose jobs share the process that has imported torch."""
    return _succeed([sys.executable, *arguments], folder, environment())


def _succeed(command: list[object], folder: Path, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
