"""The connection of an agent to the screen of a local run; it drops output if the screen is slow.

Each message is one JSON line: {"worker": …} first, then `record`s. Bytes travel as Latin-1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_WAITING_BYTES = 4 << 20
CLOSE_SECONDS = 2.0


class ScreenLink:
    """A connection to the screen, or none."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._dropped = 0

    @property
    def is_open(self) -> bool:
        """True if the screen is connected."""
        return self._writer is not None and not self._writer.is_closing()

    async def connect(self, path: str, worker: str) -> None:
        """Connect to the socket at `path`; if that fails, all output goes to the log only."""
        with contextlib.suppress(OSError):
            _, self._writer = await asyncio.open_unix_connection(path)
            self._write({"worker": worker})

    def send(self, record: Mapping[str, Any]) -> None:
        """Send a record; drop it if the screen does not read."""
        if not self.is_open:
            return
        assert self._writer is not None
        if self._writer.transport.get_write_buffer_size() > MAX_WAITING_BYTES:
            self._dropped += len(record.get("text", ""))
            return
        if self._dropped:
            self._write({"dropped": self._dropped})
            self._dropped = 0
        self._write(record)

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Send what waits, for a limited time, and disconnect."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), CLOSE_SECONDS)
