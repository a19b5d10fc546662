"""The agent's side: starts the warm parent, waits until it is ready, asks it for torchrun.

Decides at once, and once, when a command cannot be started warm; logs why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from . import channel, parent
from .fitness import UnfitError, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_SECONDS = 120.0  # of importing torch; after that, cold starts are likely no quicker
START_SECONDS = 30.0
# The folder, or archive, that this package is in, so that the user's Python finds it.
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = (
    "import sys; sys.path.insert(0, {home!r});"
    " from {package}.parent import main;"
    " del sys.path[:1 if getattr(sys.flags, 'safe_path', False) else 2];"
    " main({descriptor})"
)

COLD = "the command is started cold: %s"

log = logging.getLogger("ddpjob.warm")


class Standby:
    """One warm parent, for the life of an agent."""

    def __init__(self) -> None:
        self.pid: int | None = None  # of the parent, while it lives
        self._arguments: list[str] = []
        self._channel: socket.socket | None = None

    def begin(self, argv: Sequence[str], environment: Mapping[str, str], *, wanted: bool) -> None:
        """Start the parent, with the environment in which it is to import torch."""
        try:
            if not wanted:
                raise UnfitError("warm starts are switched off")
            python, self._arguments = interpreter_of(argv, environment)
            self._start(python, environment)
        except (UnfitError, OSError) as error:
            log.info(COLD, error)

    def _start(self, python: str, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        program = PROGRAM.format(
            home=HOME, package=parent.__name__.rpartition(".")[0], descriptor=theirs.fileno()
        )
        with theirs:
            child = subprocess.Popen(
                [python, "-u", "-c", program], env=environment, stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        child.returncode = 0  # reaped with the other children of the agent
        self.pid = child.pid
        self._channel.setblocking(False)

    async def wait(self) -> None:
        """Until it is known whether starts are warm."""
        if self._channel is None:
            return
        loop, told = asyncio.get_running_loop(), b""
        try:
            while not told.endswith(b"\n"):
                piece = await asyncio.wait_for(loop.sock_recv(self._channel, 4096), READY_SECONDS)
                if not piece:
                    break
                told += piece
        except asyncio.TimeoutError:
            told = f"{parent.UNFIT} torch is not imported after {READY_SECONDS:.0f} s".encode()
        except OSError as error:
            told = f"{parent.UNFIT} {error}".encode()
        word, _, reason = told.decode(errors="replace").strip().partition(" ")
        if word != parent.READY:
            self.close()
            log.info(COLD, reason or "the process that imports torch ended")

    async def start(self, environment: Mapping[str, str], stderr: int) -> Started | None:
        """torchrun in that environment; None: it must be started cold, from now on."""
        if self._channel is None:
            return None
        line, theirs = socket.socketpair()
        try:
            with theirs:
                self._ask(environment, stderr, theirs.fileno())
            line.setblocking(False)
            recv = asyncio.get_running_loop().sock_recv(line, channel.LINE_BYTES)
            told = channel.understand(await asyncio.wait_for(recv, START_SECONDS))
            return Started(told[channel.PID], line)
        except (OSError, KeyError, asyncio.TimeoutError):
            line.close()
            self.close()
            log.warning(COLD, "the process that has imported torch is gone")
            return None

    def _ask(self, environment: Mapping[str, str], stderr: int, line: int) -> None:
        assert self._channel is not None
        request = channel.Request(self._arguments, dict(environment), os.getcwd())
        self._channel.settimeout(START_SECONDS)
        with open(os.devnull, "rb") as nothing:
            channel.send(self._channel, request, [nothing.fileno(), 1, stderr, line])

    def ended(self, pid: int) -> None:
        """A child of the agent has ended; perhaps it was the parent."""
        if pid == self.pid:
            self.pid = None

    def close(self) -> None:
        """End the parent; what it forked lives on."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = None


class Started:
    """A torchrun that waits for `go`, so that it cannot end before its id is known."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line

    def go(self) -> None:
        """Let it run."""
        channel.tell(self._line, channel.PID, self.pid)
        self._line.close()
