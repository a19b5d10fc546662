"""One piece of work at a time in a thread; nothing is ever queued.

Python waits for the thread at its end, so that a script which just ends loses nothing.
Knows nothing of what is done.
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
    """Whoever starts work hears of what went wrong in the one before."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is work that has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Do it; nothing may be under way, and who starts has waited for what was."""
        assert self._thread is None
        self._thread = threading.Thread(target=self._do, args=(work,), name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way. Raises what the last work raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Until nothing is under way; what went wrong has been logged, and is forgotten."""
        with contextlib.suppress(Exception):
            self.wait()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever comes next hears of it
            _log.warning("%s: %s", self._name, error)  # perhaps nobody comes
            self._error = error
