"""The agent's side: starts the warm parent or takes the one it is given, asks it for torchrun.

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
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.forkserver import channel, server
from ddpjob_agent.forkserver.eligibility import NotEligibleError, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_SECONDS = 120.0  # of importing torch; after that, cold starts are likely no quicker
START_SECONDS = 30.0
# The folder, or archive, that this package is in, so that the user's Python finds it.
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = (
    "import sys; sys.path.insert(0, {home!r});"
    " from {server} import main;"
    " del sys.path[:1 if getattr(sys.flags, 'safe_path', False) else 2];"
    " main(*{arguments!r})"
)

COLD = "the command is started cold: %s"

log = logging.getLogger("ddpjob.warm")


def start_server(
    python: str, environment: Mapping[str, str], path: str = "", output: int | None = None
) -> ServerProcess:
    """Start a process that imports torch; it accepts connections at the path, if given."""
    ours, theirs = socket.socketpair()
    program = PROGRAM.format(home=HOME, server=server.__name__, arguments=(theirs.fileno(), path))
    try:
        with theirs:
            process = subprocess.Popen(
                [python, "-u", "-c", program], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
    except OSError:
        ours.close()
        raise
    return ServerProcess(process, ours)


class ServerProcess(NamedTuple):
    """A process that forks for the other end of the socket."""

    process: subprocess.Popen[bytes]
    channel: socket.socket


async def wait_until_ready(connection: socket.socket) -> str:
    """Wait until the parent has imported torch; returns what it says of itself, in JSON.

    Raises NotEligibleError when it cannot fork.
    """
    loop, said = asyncio.get_running_loop(), b""
    connection.setblocking(False)
    try:
        while not said.endswith(b"\n"):
            piece = await asyncio.wait_for(loop.sock_recv(connection, 4096), READY_SECONDS)
            if not piece:
                break
            said += piece
    except asyncio.TimeoutError:
        raise NotEligibleError(f"torch is not imported after {READY_SECONDS:.0f} s") from None
    except OSError as error:
        raise NotEligibleError(str(error)) from error
    word, _, rest = said.decode(errors="replace").strip().partition(" ")
    if word != channel.READY:
        raise NotEligibleError(rest or "the process that imports torch ended")
    return rest


async def request_fork(
    connection: socket.socket, request: channel.ForkRequest, stdout: int, stderr: int
) -> tuple[int, socket.socket]:
    """Have a process forked; returns its id and the line on which more is told of it.

    Raises OSError when it was not.
    """
    line, theirs = socket.socketpair()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        with theirs:
            connection.settimeout(START_SECONDS)
            channel.send(connection, request, [nothing, stdout, stderr, theirs.fileno()])
        line.setblocking(False)
        recv = asyncio.get_running_loop().sock_recv(line, channel.LINE_BYTES)
        told = channel.parse_event(await asyncio.wait_for(recv, START_SECONDS))
        return told[channel.PID], line
    except BaseException as error:
        line.close()
        if isinstance(error, (KeyError, asyncio.TimeoutError)):
            raise OSError("the process that has imported torch does not answer") from error
        raise
    finally:
        os.close(nothing)


class ForkServerClient:
    """One warm parent, for the life of an agent."""

    def __init__(self) -> None:
        self.pid: int | None = None  # of the parent, while it lives
        self._arguments: list[str] = []
        self._channel: socket.socket | None = None

    def begin(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        wanted: bool,
        given: tuple[int, int] | None = None,
    ) -> None:
        """Start the parent, with the environment in which it is to import torch.

        `given` are descriptor and process id of one that is there already.
        """
        if given is not None:
            descriptor, self.pid = given
            os.set_inheritable(descriptor, False)
            self._channel = socket.socket(fileno=descriptor)
        try:
            if not wanted:
                raise NotEligibleError("warm starts are switched off")
            python, self._arguments = interpreter_of(argv, environment)
            if self._channel is None:
                process, self._channel = start_server(python, environment)
                process.returncode = 0  # reaped with the other children of the agent
                self.pid = process.pid
        except (NotEligibleError, OSError) as error:
            self.close()
            log.info(COLD, error)

    async def wait(self) -> None:
        """Until it is known whether starts are warm."""
        if self._channel is not None:
            try:
                await wait_until_ready(self._channel)
            except NotEligibleError as error:
                self.close()
                log.info(COLD, error)

    async def start(self, environment: Mapping[str, str], stderr: int) -> ForkedProcess | None:
        """torchrun in that environment; None: it must be started cold, from now on."""
        if self._channel is None:
            return None
        request = channel.ForkRequest(
            channel.TORCHRUN, self._arguments, dict(environment), os.getcwd()
        )
        try:
            return ForkedProcess(*await request_fork(self._channel, request, 1, stderr))
        except OSError:
            self.close()
            log.warning(COLD, "the process that has imported torch is gone")
            return None

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


class ForkedProcess:
    """A torchrun that waits for `go`, so that it cannot end before its id is known."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line

    def go(self) -> None:
        """Let it run."""
        channel.send_event(self._line, channel.PID, self.pid)
        self._line.close()
