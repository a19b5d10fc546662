"""Agents and services as processes, forked from one that has imported their modules.

The start of Python and the imports cost more than what most of them do in a test. With DDPJOB_COLD=1
each is executed instead.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ddpjob_agent.forkserver.popen import ForkedPopen
from support.forked import COLD, Program

ZYGOTE = Path(__file__).with_name("agent_zygote.py")


class Zygote:
    """The process that forks, once it is needed."""

    def __init__(self) -> None:
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes]

    def channel(self) -> socket.socket:
        """Return the socket for requests; start the process before the first one."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, str(ZYGOTE), str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        return self._channel

    def close(self) -> None:
        """End the process, if it was started."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._process.wait()


ZYGOTE_OF_SESSION = Zygote()


@contextlib.contextmanager
def zygote_ends() -> Iterator[None]:
    """End the process that forks with the block."""
    try:
        yield
    finally:
        ZYGOTE_OF_SESSION.close()


def start_agent(
    *arguments: str,
    env: Mapping[str, str],
    folder: Path | None = None,
    output: IO[Any] | None = None,
    prefix: Sequence[str] = (),
) -> Program:
    """Run `python -m ddpjob_agent ARGUMENTS`; a command before it has it executed."""
    command = [sys.executable, "-u", "-m", "ddpjob_agent", *arguments]
    if COLD or prefix:
        return subprocess.Popen(
            [*prefix, *command], env=env, cwd=folder, stdout=output, stderr=output
        )
    streams = (output.fileno(), output.fileno()) if output else (1, 2)
    with Path(os.devnull).open("rb") as nothing, contextlib.chdir(folder or "."):
        return ForkedPopen(ZYGOTE_OF_SESSION.channel(), command, env, (nothing.fileno(), *streams))
