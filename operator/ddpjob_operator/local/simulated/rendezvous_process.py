"""The rendezvous service of a local job: one process, restarted whenever it ends.

Replaces the kubelet of the rendezvous pod (`restartPolicy: Always`); the port is fixed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddpjob_operator.local.simulated.processes import explain_lasting, send_signal
from ddpjob_operator.planner.observed import Rendezvous
from ddpjob_protocol.exit_codes import Exit

PORTS = range(20000, 30000)  # below the kernel's ephemeral ports
RESTART_SECONDS = 0.1
STOP_SECONDS = 5.0


class PortInUseError(Exception):
    """The port from the user is in use."""


class RendezvousProcess:
    """The service process of a local job."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        logs: Path,
        changed: Callable[[], None],
        port: int | None,
    ) -> None:
        self.port = port or free_port()
        if not is_free(self.port):
            raise PortInUseError(
                f"port {self.port} is in use; stop the process there, choose another with --port,"
                " or omit --port to get a free one"
            )
        self._command = command
        self._environment = environment
        self._folder = folder
        self._logs = logs
        self._changed = changed
        self._term: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.problem = ""  # the reason why it cannot be started here

    def observe(self) -> Rendezvous | None:
        """Return the service as the operator observes it."""
        if self._term is None:
            return None
        running = self._process is not None and self._process.returncode is None
        return Rendezvous(term=self._term, ready=running)

    async def start(self, term: int) -> None:
        """Start the service and restart it whenever it ends."""
        if self._term is None:
            self._term = term
            self._keeper = asyncio.ensure_future(self._run(term))

    def kill(self) -> None:
        """Send SIGKILL to the service, which then restarts."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the service."""
        if self._process is not None:
            send_signal(self._process, number)

    async def stop(self) -> None:
        """Stop the service permanently."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._keeper = self._term = None
        if self._process is not None and self._process.returncode is None:
            send_signal(self._process, signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                send_signal(self._process, signal.SIGKILL)
                await self._process.wait()
        self._changed()

    async def _run(self, term: int) -> None:
        arguments = (
            "--port", str(self.port), "--term", str(term),
            "--boot-file", str(self._folder / f"boots-{term}"),
        )  # fmt: skip
        while not self.problem:
            pause = 1.0
            try:
                self._process = await self._start(arguments)
            except OSError as error:
                self.problem = explain_lasting(error, self._command[0])
            else:
                self._changed()
                if await self._process.wait() != Exit.PORT_IN_USE:
                    pause = RESTART_SECONDS
            self._changed()
            await asyncio.sleep(pause)

    async def _start(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        with (self._logs / "rendezvous.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )


def free_port() -> int:
    """Return a free port."""
    return next(port for port in random.sample(PORTS, len(PORTS)) if is_free(port))


def is_free(port: int) -> bool:
    """Return whether this loopback port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
