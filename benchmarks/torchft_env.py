"""Makes .venv-torchft: torchft and what it needs, pinned and hash-checked, on the project's torch.

An environment of its own, since torchft is only ever compared with; torch itself is not installed
twice, but found in this Python's environment. Needs the package registry the first time.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-torchft"
REQUIREMENTS = Path(__file__).resolve().parent / "torchft-requirements.txt"
PACKAGE = "torchft-nightly"
STAMP = HOME / ".ready"


class TorchftMissingError(Exception):
    """torchft cannot be had here; the message says why."""


def torchft_programs() -> Path:
    """The folder with `python` and `torchft_lighthouse`; made if it is not up to date."""
    wanted = _fingerprint()
    if not STAMP.exists() or STAMP.read_text() != wanted:
        _make()
        STAMP.write_text(wanted)
    return HOME / "bin"


def torchft_version() -> str:
    """As pinned."""
    pins = (line.partition("==") for line in REQUIREMENTS.read_text().splitlines())
    return next(version.split()[0] for name, _, version in pins if name == PACKAGE)


def _make() -> None:
    uv = _run(str(ROOT / "tools" / "setup.sh"), "--uv").strip()
    python = str(HOME / "bin" / "python")
    _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(HOME))
    packages = Path(
        _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    hashed = ("--no-deps", "--require-hashes", "--requirements", str(REQUIREMENTS))
    _run(uv, "pip", "install", "--quiet", "--python", python, *hashed)
    _run(python, "-c", "import torchft")


def _fingerprint() -> str:
    """It depends on the requirements, and on where both environments lie."""
    parts = (REQUIREMENTS.read_text(), str(HOME), sysconfig.get_path("purelib"), sys.version)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)  # not for the result: it may name this machine's registry
        words = [Path(word).name for word in command[:3]]
        raise TorchftMissingError(f"`{' '.join(words)} …` failed")
    return done.stdout
