"""The rendezvous service of a local job: one process, started again whenever it ends.

What the kubelet does for the rendezvous pod (`restartPolicy: Always`), on a fixed port.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddpjob_operator.planner.observed import Rendezvous
from ddpjob_protocol.exit_codes import Exit

PORTS = range(20000, 30000)  # below the ports that the kernel hands out by itself
RESTART_SECONDS = 0.1
STOP_SECONDS = 5.0


class PortInUseError(Exception):
    """The port that the user asked for is taken."""


class RendezvousProcess:
    """Runs the service; `observe` says what there is."""

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
                f"port {self.port} is in use; end what listens there, choose another with --port,"
                " or leave --port away to get a free one"
            )
        self._command = command
        self._environment = environment
        self._folder = folder
        self._logs = logs
        self._changed = changed
        self._term: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    def observe(self) -> Rendezvous | None:
        """As the operator sees it."""
        if self._term is None:
            return None
        running = self._process is not None and self._process.returncode is None
        return Rendezvous(term=self._term, ready=running)

    async def start(self, term: int) -> None:
        """Start it and keep it running."""
        if self._term is None:
            self._term = term
            self._keeper = asyncio.ensure_future(self._run(term))

    def kill(self) -> None:
        """SIGKILL; it is started again."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to its process."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """End it for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._keeper = self._term = None
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._changed()

    async def _run(self, term: int) -> None:
        arguments = (
            "--port", str(self.port), "--term", str(term),
            "--boot-file", str(self._folder / f"boots-{term}"),
        )  # fmt: skip
        while True:
            with (self._logs / "rendezvous.log").open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    *arguments,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
            self._changed()
            code = await self._process.wait()
            self._changed()
            await asyncio.sleep(1.0 if code == Exit.PORT_IN_USE else RESTART_SECONDS)


def free_port() -> int:
    """A port that nobody listens on."""
    return next(port for port in random.sample(PORTS, len(PORTS)) if is_free(port))


def is_free(port: int) -> bool:
    """Whether one can listen on this loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
