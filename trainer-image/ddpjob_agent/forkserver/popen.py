"""A training process that torchrun started warm, with the used part of `subprocess.Popen`.

The fork server forks and reaps the process, and sends its exit code.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from ddpjob_agent.forkserver import channel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ForkedPopen:
    """A forked process; `args` start with PYTHON -u. Raises OSError if the fork fails."""

    def __init__(
        self,
        parent: socket.socket,
        args: Sequence[str],
        env: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> None:
        self.args = list(args)
        self.returncode: int | None = None
        self._line, theirs = socket.socketpair()
        request = channel.ForkRequest(channel.PROGRAM, self.args[2:], dict(env), os.getcwd())
        with theirs:
            channel.send(parent, request, [*streams, theirs.fileno()])
        select.select([self._line], [], [])
        events = self._read_events()
        if channel.PID not in events:
            raise OSError("it cannot be forked any more")
        self.pid = events[channel.PID]

    def _read_events(self) -> Mapping[str, int]:
        # The text stays in the socket: a signal may end the caller before it stores the text.
        try:
            text = self._line.recv(channel.LINE_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return {}
        return channel.parse_event(text)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None:
            closed = self._is_closed()  # checked first, so the read gets all events
            self.returncode = self._read_events().get(channel.EXIT)
            if self.returncode is None and closed and not self._is_alive():
                self.returncode = -signal.SIGKILL  # the fork server ended first
            if self.returncode is not None:
                self._line.close()
        return self.returncode

    def _is_alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _is_closed(self) -> bool:
        poll = select.poll()
        poll.register(self._line, select.POLLRDHUP)
        return bool(poll.poll(0))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code, as `subprocess.Popen` does."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the signal, as `subprocess.Popen` does."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, as `subprocess.Popen` does."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, as `subprocess.Popen` does."""
        self.send_signal(signal.SIGKILL)
