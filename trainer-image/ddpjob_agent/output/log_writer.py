"""Writes the log of an agent, its stdout and stderr, without waiting for the reader.

An event loop that waits for a full pipe sends no heartbeat, and its worker would be lost. So a
thread writes, and the loop only adds to a bounded queue. A slow reader delays the processes that
print. If it reads nothing for `STALL_SECONDS`, output is dropped until the queue is empty. Then one
line reports the number of bytes. One thread writes both, as they often are one file or pipe, where
the lines of two threads would mix.
"""

from __future__ import annotations

import collections
import os
import select
import threading
import time

MAX_WAITING_BYTES = 8 << 20
PIECE_BYTES = 16 << 10  # written at once
STALL_SECONDS = 1.0
FLUSH_SECONDS = 2.0


class LogWriter:
    """The writer of a log; any thread may use it."""

    def __init__(self, limit: int = MAX_WAITING_BYTES) -> None:
        self._limit = limit
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._waiting: collections.deque[tuple[int, bytes]] = collections.deque()
        self._size = 0  # bytes that wait or are being written
        self._dropped = 0
        self._gap = 2  # descriptor of the last dropped bytes
        self._advanced_at = 0.0
        self._thread: threading.Thread | None = None

    def write(self, descriptor: int, data: bytes) -> None:
        """Add to the log; count what does not fit."""
        with self._changed:
            if self._dropped or self._size + len(data) > self._limit:
                self._dropped += len(data)
                self._gap = descriptor
            else:
                self._add(descriptor, data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ddpjob-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    @property
    def is_behind(self) -> bool:
        """True if much waits and the reader still reads: wait before more is written."""
        with self._changed:
            age = time.monotonic() - self._advanced_at
            return 2 * self._size > self._limit and not self._dropped and age < STALL_SECONDS

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all is written, at most for these seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(self._is_done, seconds)

    def _is_done(self) -> bool:
        return self._size == 0 and not self._dropped

    def _add(self, descriptor: int, data: bytes) -> None:
        if self._size == 0:
            self._advanced_at = time.monotonic()
        self._waiting.append((descriptor, data))
        self._size += len(data)

    def _run(self) -> None:
        while True:
            descriptor, data = self._next()
            for at in range(0, len(data), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                _write(descriptor, piece)
                with self._changed:
                    self._size -= len(piece)
                    self._advanced_at = time.monotonic()
                    self._changed.notify_all()

    def _next(self) -> tuple[int, bytes]:
        with self._changed:
            while not self._waiting:
                if self._dropped:
                    self._add(
                        self._gap,
                        f"\nddpjob: {self._dropped} bytes of output are missing here, because"
                        " nothing read this log\n".encode(),
                    )
                    self._dropped = 0
                else:
                    self._changed.wait()
            return self._waiting.popleft()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except OSError:  # a full disk under the log must not end the job
            return


LOG = LogWriter()  # of this process


class LogStream:
    """A text stream for `logging` that writes to the log of this process."""

    def write(self, text: str) -> None:
        """Add a text to the log."""
        LOG.write(2, text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        """Do nothing: a line of the log waits for no reader."""
