"""Work in pieces that several threads do together: who waits for it helps.

May not: know what is copied.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Copying:
    """Pieces of work, each to be done once, in whatever order."""

    def __init__(self, pieces: Iterable[Callable[[], None]] = ()) -> None:
        self._rest = collections.deque(pieces)
        self._missing = len(self._rest)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: BaseException | None = None
        if not self._rest:
            self._done.set()

    def help(self) -> None:
        """Do what nobody does yet; returns when all is done, or has failed."""
        while self._rest:
            try:
                piece = self._rest.popleft()
            except IndexError:
                break
            self._do(piece)
        self._done.wait()

    def finish(self) -> None:
        """The same. Raises what a piece has raised, in whatever thread."""
        self.help()
        if self._error is not None:
            raise self._error

    def _do(self, piece: Callable[[], None]) -> None:
        try:
            piece()
        except Exception as error:  # noqa: BLE001 - for who finishes
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._lock:
                self._missing -= 1
                if not self._missing:
                    self._done.set()
