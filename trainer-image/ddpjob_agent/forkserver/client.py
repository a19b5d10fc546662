"""The agent's side: starts a fork server, or uses an existing one, and requests torchrun from it.

If a command cannot start warm, the client decides so once, logs the reason and closes the server.
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
from ddpjob_agent.net.sockets.descriptors import given_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_SECONDS = 120.0  # to import torch; a cold start is likely no slower than a longer import
START_SECONDS = 30.0
# The folder or archive of this package, for the import path of the user's Python.
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
    """Start a fork server; if `path` is set, the server also accepts connections there."""
    ours, theirs = socket.socketpair()
    program = PROGRAM.format(home=HOME, server=server.__name__, arguments=(theirs.fileno(), path))
    try:
        with theirs, given_limit():
            process = subprocess.Popen(
                [python, "-u", "-c", program], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
    except OSError:
        ours.close()
        raise
    return ServerProcess(process, ours)


class ServerProcess(NamedTuple):
    """A fork server process and the socket for requests to the server."""

    process: subprocess.Popen[bytes]
    channel: socket.socket


async def wait_until_ready(connection: socket.socket) -> str:
    """Wait until the fork server has imported torch; return its greeting, in JSON.

    Raise NotEligibleError if the fork server cannot fork.
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
    """Request a forked process; return its id and the socket that carries its events.

    Raise OSError if the fork server does not fork the process.
    """
    line, theirs = socket.socketpair()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        with theirs:
            connection.settimeout(START_SECONDS)
            channel.send(connection, request, [nothing, stdout, stderr, theirs.fileno()])
        line.setblocking(False)
        recv = asyncio.get_running_loop().sock_recv(line, channel.LINE_BYTES)
        event = channel.parse_event(await asyncio.wait_for(recv, START_SECONDS))
        return event[channel.PID], line
    except BaseException as error:
        line.close()
        if isinstance(error, (KeyError, asyncio.TimeoutError)):
            raise OSError("the process that has imported torch does not answer") from error
        raise
    finally:
        os.close(nothing)


class ForkServerClient:
    """The connection of one agent to its fork server."""

    def __init__(self) -> None:
        self.pid: int | None = None  # id of the fork server, while it runs
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
        """Start the fork server; it imports torch in the environment.

        `given` holds the descriptor and process id of a fork server that runs already.
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
                process.returncode = 0  # the agent reaps the process with its other children
                self.pid = process.pid
        except (NotEligibleError, OSError) as error:
            self.close()
            log.info(COLD, error)

    async def wait(self) -> None:
        """Wait until the fork server is ready or closed."""
        if self._channel is not None:
            try:
                await wait_until_ready(self._channel)
            except NotEligibleError as error:
                self.close()
                log.info(COLD, error)

    async def start(
        self, environment: Mapping[str, str], stdout: int | None, stderr: int
    ) -> ForkedProcess | None:
        """Start torchrun in the environment; return None if this and all later starts are cold.

        If `stdout` is None, torchrun inherits the standard output of this process.
        """
        if self._channel is None:
            return None
        request = channel.ForkRequest(
            channel.TORCHRUN, self._arguments, dict(environment), os.getcwd()
        )
        try:
            out = 1 if stdout is None else stdout
            return ForkedProcess(*await request_fork(self._channel, request, out, stderr))
        except OSError:
            self.close()
            log.warning(COLD, "the process that has imported torch is gone")
            return None

    def ended(self, pid: int) -> None:
        """Note the end of a child of the agent, which may be the fork server."""
        if pid == self.pid:
            self.pid = None

    def close(self) -> None:
        """End the fork server; the processes that it forked keep running."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = None


class ForkedProcess:
    """A torchrun that waits for `go`, so it cannot end before the agent has its id."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line

    def go(self) -> None:
        """Let torchrun run."""
        channel.send_event(self._line, channel.PID, self.pid)
        self._line.close()
