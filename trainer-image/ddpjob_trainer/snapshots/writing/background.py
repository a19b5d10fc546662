"""A thread for one task at a time; there is no queue.

At exit, Python waits for the thread, so a script that ends loses no work. This module does not
depend on the task.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("ddpjob")


class Background:
    """A thread that runs one task at a time and raises a task's error at the next wait."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """True while a task is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Start a task; the caller must have waited for the previous one."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._do, args=(work,), name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the task. Raise the task's error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait for the task; discard its error, which is already logged."""
        with contextlib.suppress(Exception):
            self.wait()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the next wait() raises it
            _log.warning("%s: %s", self._name, error)  # there may be no next wait()
            self._error = error
