"""Aborts of several groups at once, and their end before that of the process.

An abort of NCCL waits for the device, and the device may wait for a collective of another group. So
the groups of a process are aborted at the same time, each by a thread. A thread that never returns
is left behind. This module does not depend on torch.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXIT_SECONDS = 10.0  # for a thread, at the end of the process


class ExitGate:
    """Lets threads into torch's code until the process ends, and then waits for those inside.

    Python stops its threads when it ends. A thread that is inside torch's code, such as the destructor
    of a group, would then end the process by SIGABRT, although its training has succeeded.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False
        atexit.register(self._close)

    @contextlib.contextmanager
    def pass_through(self) -> Iterator[None]:
        """Count this thread as inside; when the process ends, block it, unless it is the main one."""
        is_main = threading.current_thread() is threading.main_thread()
        with self._changed:
            self._changed.wait_for(lambda: is_main or not self._is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._inside, EXIT_SECONDS)


class Group(Protocol):
    """A process group of torch."""

    def abort(self) -> None: ...  # noqa: D102 - see torch


class Aborts:
    """The aborts of the groups of one process."""

    def __init__(self) -> None:
        self._threads: dict[Group, threading.Thread] = {}

    def start(self, groups: Iterable[Group]) -> bool:
        """Abort these groups at the same time, except those whose last abort has not returned.

        Return whether there is one to wait for.
        """
        self._threads = {group: each for group, each in self._threads.items() if each.is_alive()}
        new = [group for group in groups if group not in self._threads]
        for group in new:
            thread = threading.Thread(target=_abort, args=[group], daemon=True)
            self._threads[group] = thread
            thread.start()
        return bool(new)

    def wait(self, seconds: float) -> bool:
        """Wait for all aborts; return whether they have returned within this time."""
        until = time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())


def _abort(group: Group) -> None:
    with contextlib.suppress(RuntimeError):  # a backend without an abort
        group.abort()
