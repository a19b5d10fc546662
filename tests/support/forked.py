"""Python programs that need torch, forked from one process that has imported it.

Each runs as `python PROGRAM` would, but for the seconds that the import takes. DDPJOB_COLD=1 has
all of them executed instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from ddpjob_agent.forkserver.client import start_server, wait_until_ready
from ddpjob_agent.forkserver.popen import ForkedPopen
from ddpjob_protocol.environment import ENV_WARM_IMPORTS
from support import driving, huge_pages

ROOT = Path(__file__).resolve().parents[2]
COLD = os.environ.get("DDPJOB_COLD") == "1"
TORCHRUN = Path(__file__).with_name("torchrun.py")

Program = ForkedPopen | subprocess.Popen[bytes]


def environment() -> dict[str, str]:
    """For processes that import the trainer."""
    return {**driving.environment(), "PYTHONPATH": f"{ROOT}/trainer-image:{ROOT}/tests"}


class Forks:
    """The fork server, and the requests to it."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self._parent = start_server(sys.executable, environment, str(path))
        asyncio.run(wait_until_ready(self._parent.channel))
        self._parent.channel.setblocking(True)
        huge_pages.collapse(self._parent.process.pid)

    def start(
        self,
        *arguments: object,
        env: Mapping[str, str],
        folder: Path | None = None,
        output: IO[Any] | None = None,
        errors: IO[Any] | None = None,
        executed: bool = COLD,
    ) -> Program:
        """A script and its arguments."""
        command = [sys.executable, "-u", *map(str, arguments)]
        if executed:
            return subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=errors)
        files = [file.fileno() if file else number for number, file in ((1, output), (2, errors))]
        with Path(os.devnull).open("rb") as nothing, contextlib.chdir(folder or "."):
            streams = (nothing.fileno(), files[0], files[1])
            return ForkedPopen(self._parent.channel, command, env, streams)

    def torchrun(self, *arguments: object, **options: Any) -> Program:
        """Run torchrun, with training processes that are forked."""
        if COLD:
            return self.start("-m", "torch.distributed.run", *arguments, **options)
        return self.start(TORCHRUN, self.path, *arguments, **options)

    def close(self) -> None:
        """End the server; the forked processes live on."""
        self._parent.channel.close()
        self._parent.process.wait()


@contextlib.contextmanager
def forking(environment: Mapping[str, str]) -> Iterator[Forks]:
    """Import torch in that environment, and end with the block."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-fork-") as folder:
        forks = Forks(Path(folder) / "socket", environment)
        try:
            yield forks
        finally:
            forks.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Starts programs that import the trainer, some of them the digits, too."""
    with forking({**environment(), ENV_WARM_IMPORTS: "sklearn.datasets"}) as forks:
        yield forks
