"""The interpreters of this machine on which the agent has to run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 9)  # that the agent runs on
NEWEST = (3, 13)

Version = tuple[int, int]


@functools.cache
def pythons() -> dict[Version, Path]:
    """One interpreter of each version from OLDEST to NEWEST that this machine has.

    Version managers leave stubs on PATH that exist but do not run: each is tried.
    """
    folders = [Path(entry) for entry in os.get_exec_path()]
    folders += sorted(_pyenv_root().glob("versions/*/bin"))
    folders += sorted(_uv_pythons().glob("*/bin"))
    found = {sys.version_info[:2]: Path(sys.executable)}
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        for folder in folders:
            candidate = folder / f"python3.{minor}"
            if (3, minor) not in found and _version_of(candidate) == f"3.{minor}":
                found[3, minor] = candidate
    return found


def _pyenv_root() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


def _uv_pythons() -> Path:
    chosen = os.environ.get("UV_PYTHON_INSTALL_DIR")
    return Path(chosen) if chosen else Path.home() / ".local" / "share" / "uv" / "python"


def _version_of(python: Path) -> str | None:
    if shutil.which(python) is None:
        return None
    command = [str(python), "-S", "-E", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else None
