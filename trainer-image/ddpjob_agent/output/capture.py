"""Reads what one command and its ranks write; forwards it to the agent's log and to the screen.

Keeps the tail of stderr for the report of a failure.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.output import streams
from ddpjob_agent.output.log_writer import LOG
from ddpjob_agent.output.plan import OutputPlan, plan_output
from ddpjob_agent.output.screen_link import ScreenLink
from ddpjob_protocol.environment import Launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TAIL_BYTES = 128 << 10
READ_BYTES = 64 << 10
BEHIND_SECONDS = 0.02  # pause of a stream whose log is behind
READS = 64  # of one stream in a row, so that a flood does not stop the agent
TRACEBACK = b"Traceback (most recent call last)"


class _Stream(NamedTuple):
    descriptor: int
    name: str  # of streams.STREAMS
    local_rank: int | None  # None: the command's own


class OutputCapture:
    """The output of one command at a time."""

    def __init__(self, launcher: Launcher = Launcher.TORCHRUN, processes: int = 1) -> None:
        self._launcher = launcher
        self._processes = processes
        self._screen = ScreenLink()
        self._plan = OutputPlan()
        self._first_rank: int | None = 0
        self._streams: list[_Stream] = []
        self._rests: dict[_Stream, bytes] = {}  # the begun line of each, not logged yet
        self.stderr_tail = bytearray()
        self.traceback_at: float | None = None  # when the first traceback was printed

    async def connect(self, path: str, worker: str) -> None:
        """Connect to the screen at `path`, if it is not empty."""
        if path:
            await self._screen.connect(path, worker)

    async def disconnect(self) -> None:
        """Send the rest to the screen and disconnect."""
        await self._screen.close()

    def prepare(
        self, argv: Sequence[str], environment: Mapping[str, str], python: str, logs: str
    ) -> Mapping[str, str]:
        """Plan the next start; return more variables for it. Raise OSError on a disk error.

        `python` runs torchrun, and is empty if the command is not torchrun itself.
        """
        self._plan = OutputPlan()
        if self._screen.is_open:
            self._plan = plan_output(
                argv, environment, self._launcher, self._processes, logs, python
            )
        return self._plan.environment

    @property
    def errors(self) -> tuple[bytes, float | None]:
        """The tail of stderr, and when the first traceback was printed."""
        return bytes(self.stderr_tail), self.traceback_at

    def set_first_rank(self, rank: int | None) -> None:
        """Count the ranks of live processes from this rank; None: it is not known yet."""
        self._first_rank = rank

    def open(self) -> tuple[int | None, int]:
        """Begin a start; return stdout, if it is captured, and stderr for the command.

        The caller closes both in this process.
        """
        self.close()
        self.stderr_tail.clear()
        self.traceback_at = None
        captured = self._screen.is_open
        for local in range(self._plan.ranks):
            for name in streams.STREAMS:
                path = streams.path_of(self._plan.folder, local, name)
                # With a writer of its own, a FIFO has no end before the agent closes it.
                self._read(_Stream(os.open(path, os.O_RDWR | os.O_NONBLOCK), name, local))
        return self._pipe("out") if captured else None, self._pipe("err")

    def _pipe(self, name: str) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._read(_Stream(reader, name, None))
        return writer

    def _read(self, stream: _Stream) -> None:
        self._streams.append(stream)
        asyncio.get_running_loop().add_reader(stream.descriptor, self._on_readable, stream)

    def _on_readable(self, stream: _Stream) -> None:
        """Forward output; let the process wait while the log is behind."""
        if not LOG.is_behind:
            self._forward(stream)
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(stream.descriptor)
        loop.call_later(BEHIND_SECONDS, self._resume, stream)

    def _resume(self, stream: _Stream) -> None:
        if stream in self._streams:
            loop = asyncio.get_running_loop()
            loop.add_reader(stream.descriptor, self._on_readable, stream)

    def drain(self) -> None:
        """Forward all output that has been written, begun lines included."""
        for stream in list(self._streams):
            self._forward(stream)
            self._log(stream, self._rests.pop(stream, b""))

    def close(self) -> None:
        """Forward the rest and close all streams."""
        if not self._streams:
            return
        self.drain()
        for stream in list(self._streams):
            self._close(stream)
        self._screen.send({"end": True})

    def _close(self, stream: _Stream) -> None:
        if stream in self._streams:
            self._log(stream, self._rests.pop(stream, b""))
            self._streams.remove(stream)
            asyncio.get_running_loop().remove_reader(stream.descriptor)
            os.close(stream.descriptor)

    def _forward(self, stream: _Stream) -> None:
        for _ in range(READS):
            if stream not in self._streams:
                return
            try:
                data = os.read(stream.descriptor, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close(stream)
                return
            if stream.name == "err":
                self._keep_tail(data)
            self._log(stream, self._whole_lines(stream, data))
            self._show(stream, data)

    def _keep_tail(self, data: bytes) -> None:
        if self.traceback_at is None and TRACEBACK in data:
            self.traceback_at = time.time()
        self.stderr_tail += data
        del self.stderr_tail[:-TAIL_BYTES]

    def _whole_lines(self, stream: _Stream, data: bytes) -> bytes:
        """Return the whole lines so far; the streams of several ranks must not mix in a line."""
        if not self._screen.is_open:
            return data
        data = self._rests.pop(stream, b"") + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > READ_BYTES:
            end = len(data)
        self._rests[stream] = data[end:]
        return data[:end]

    @staticmethod
    def _log(stream: _Stream, data: bytes) -> None:
        if data:
            LOG.write(2 if stream.name == "err" else 1, data)

    def _show(self, stream: _Stream, data: bytes) -> None:
        if stream.local_rank is None and not self._plan.shows_command:
            return
        rank = self._rank_of(stream)
        is_first = self._plan.has_first if rank is None else rank == 0
        self._screen.send(
            {
                "rank": rank,
                "first": is_first,
                "stream": stream.name,
                "source": stream.local_rank,
                "text": data.decode("latin-1"),
            }
        )

    def _rank_of(self, stream: _Stream) -> int | None:
        """Return the rank of a stream; None if it is unknown or several ranks share the stream."""
        local = stream.local_rank
        rank = self._plan.rank if local is None else streams.rank_of(self._plan.folder, local)
        return None if rank is None or self._first_rank is None else self._first_rank + rank
