"""Makes .venv-NAME for a peer that is a package: it and what it needs, pinned and hash-checked.

An environment of its own, since a peer is only ever compared with; torch itself is not installed
twice, but found in this Python's environment. Needs the package registry the first time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class PeerMissingError(Exception):
    """A peer is not available here; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class PeerPackage:
    """A peer from the package registry; its versions are in NAME-requirements.txt."""

    name: str
    package: str
    module: str  # that can be imported where all is well

    @property
    def home(self) -> Path:
        """Path of its virtual environment."""
        return ROOT / f".venv-{self.name}"

    @property
    def version(self) -> str:
        """Pinned version of the package."""
        pins = (line.partition("==") for line in self._requirements.read_text().splitlines())
        return next(version.split()[0] for name, _, version in pins if name == self.package)

    def programs(self) -> Path:
        """The folder with its `python`; made if it is not up to date. Raises PeerMissingError."""
        stamp, wanted = self.home / ".ready", self._fingerprint()
        if not stamp.exists() or stamp.read_text() != wanted:
            self._make()
            stamp.write_text(wanted)
        return self.home / "bin"

    @property
    def _requirements(self) -> Path:
        return Path(__file__).resolve().parent / f"{self.name}-requirements.txt"

    def _make(self) -> None:
        uv = _run(str(ROOT / "tools" / "setup.sh"), "--uv").strip()
        python = str(self.home / "bin" / "python")
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(self.home))
        packages = Path(
            _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
        )
        (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        hashed = ("--no-deps", "--require-hashes", "--requirements", str(self._requirements))
        _run(uv, "pip", "install", "--quiet", "--python", python, *hashed)
        _run(python, "-c", f"import {self.module}")

    def _fingerprint(self) -> str:
        """Return a digest of the requirements and of the paths of both environments."""
        here = (str(self.home), sysconfig.get_path("purelib"), sys.version)
        return hashlib.sha256(
            "\n".join((self._requirements.read_text(), *here)).encode()
        ).hexdigest()


TORCHFT_PACKAGE = PeerPackage(
    "torchft", "torchft-nightly", "torchft"
)  # and its `torchft_lighthouse`
DLROVER_PACKAGE = PeerPackage(
    "dlrover", "dlrover", "dlrover.trainer.torch.flash_checkpoint.ddp"
)  # and its sampler


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.stderr.write(done.stderr)  # not for the result: it may name this machine's registry
        words = [Path(word).name for word in command[:3]]
        raise PeerMissingError(f"`{' '.join(words)} …` failed")
    return done.stdout
