"""Programs of .venv-examples, which tools/examples_env.sh makes: Jupyter, MLflow, TensorBoard."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-examples" / "bin" / "python"


def run_python(folder: Path, *arguments: object, **env: str) -> str:
    """The output of a Python that must succeed, in a folder."""
    # that of the tests has imported torch in another environment
    kept = {name: value for name, value in os.environ.items() if name != ENV_FORKSERVER}
    done = subprocess.run(
        [PYTHON, *map(str, arguments)],
        cwd=folder,
        env={**kept, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
