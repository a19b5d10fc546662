"""The processes below the agent: starts the command, reaps, and ends the whole tree.

As PID 1, or as a subreaper, the agent becomes the parent of every orphaned process below it:
torchrun's workers, which have their own sessions, DataLoader workers, daemons. So the tree below
the agent holds every process to kill. Linux only. This module knows nothing of memberships.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.net.sockets.descriptors import given_limit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ddpjob_agent.forkserver.client import ForkServerClient
    from ddpjob_agent.output.capture import OutputCapture

PR_SET_CHILD_SUBREAPER = 36

log = logging.getLogger("ddpjob.processes")


def descendants(root: int) -> list[int]:
    """Return the ids of the processes below `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="latin-1") as stat:
                    parent = int(stat.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _execute(
    argv: Sequence[str], environment: Mapping[str, str], stdout: int | None, stderr: int
) -> int:
    with given_limit():
        child = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
    child.returncode = 0  # `ProcessTree` reaps the process
    return child.pid


class ProcessTree:
    """The command of one membership and all its descendants, without the fork server."""

    def __init__(
        self, on_exit: Callable[[int], None], standby: ForkServerClient, output: OutputCapture
    ) -> None:
        self._on_exit = on_exit
        self._standby = standby
        self._output = output
        self._command: int | None = None
        self._denied: set[int] = set()  # processes of other users
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become a subreaper")
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap)

    async def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command, by the fork server if possible; raise OSError if execution fails."""
        stdout, stderr = self._output.open()
        try:
            warm = await self._standby.start(environment, stdout, stderr)
            self._command = warm.pid if warm else _execute(argv, environment, stdout, stderr)
        except BaseException:
            self._output.close()
            raise
        finally:
            for descriptor in (stdout, stderr):
                if descriptor is not None:
                    os.close(descriptor)
        if warm:
            warm.go()

    def signal(self, number: int) -> None:
        """Forward a signal to the command."""
        if self._command is not None:
            self._send(self._command, number)

    async def stop(self, grace: float) -> None:
        """End the whole tree: SIGTERM for `grace` seconds if positive, then SIGKILL.

        A process of another user cannot be ended, and is not waited for.
        """
        self._command = None
        self._denied.clear()
        asked: set[int] = set()
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self._alive():
            asked |= self._signal_all(signal.SIGTERM, excluded=asked)
            await asyncio.sleep(0.02)
        warn_at = time.monotonic() + 10
        while self._alive():
            self._signal_all(signal.SIGKILL)
            await asyncio.sleep(0.01)
            if time.monotonic() > warn_at:
                log.warning("processes %s survive SIGKILL", descendants(os.getpid()))
                warn_at += 60
        self._output.close()

    def _alive(self) -> bool:
        self._reap()
        return bool(self._find_processes() - self._denied)

    def _find_processes(self) -> set[int]:
        return {*descendants(os.getpid())} - {self._standby.pid}

    def _signal_all(self, number: int, excluded: AbstractSet[int] = frozenset()) -> set[int]:
        found = self._find_processes() - excluded
        for pid in found:
            self._send(pid, number)
        return found

    def _send(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            if pid not in self._denied:
                log.warning(
                    "process %s belongs to another user and cannot be ended: it may disturb the"
                    " next start. Run the command without setuid programs such as sudo", pid
                )  # fmt: skip
            self._denied.add(pid)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._standby.ended(pid)
            if pid == self._command:
                self._command = None
                self._output.drain()
                self._on_exit(os.waitstatus_to_exitcode(status))
