"""Receives the output of all agents over a Unix socket and shows it.

May not: decide which lines are shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddpjob_operator.local.output.view import OutputLine, OutputView

MAX_MESSAGE_BYTES = 1 << 20
CLOSE_SECONDS = 5.0


class OutputReceiver:
    """The socket for the output of one job's agents."""

    def __init__(self, view: OutputView, show: Callable[[Sequence[OutputLine]], None]) -> None:
        self._view = view
        self._show = show
        self._server: asyncio.Server | None = None
        self._readers: set[asyncio.Task[None]] = set()

    async def listen(self, path: Path) -> None:
        """Open the socket at `path`."""
        self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_MESSAGE_BYTES)

    async def close(self) -> None:
        """Show what has arrived, for a limited time, and close the socket."""
        if self._server is not None:
            self._server.close()
        if self._readers:
            _, late = await asyncio.wait(self._readers, timeout=CLOSE_SECONDS)
            for reader in late:
                reader.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._read(reader, writer))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker = ""
        with contextlib.suppress(OSError, ValueError):  # the agent was killed
            while line := await reader.readline():
                message = json.loads(line)
                worker = message.get("worker", worker)
                self._show(self._view.feed(worker, message, time.monotonic()))
                await asyncio.sleep(0)  # a flood must not stop the job's own work
        writer.close()
        self._show(self._view.end(worker))
