"""Work in pieces that several threads share: a waiting thread helps.

May not: know the copied data.
"""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class CopyJob:
    """Pieces of work, then checks; each is done once, and they start in order.

    A check starts when all pieces are done.
    """

    def __init__(
        self,
        pieces: Iterable[Callable[[], None]] = (),
        checks: Iterable[Callable[[], None]] = (),
    ) -> None:
        first = [*pieces]
        self._count = len(first)
        self._rest = collections.deque(enumerate([*first, *checks]))
        self._undone = {number for number, _ in self._rest}
        self._condition = threading.Condition()
        self._error: BaseException | None = None
        self._is_urgent = False

    @property
    def is_urgent(self) -> bool:
        """True if a blocked thread helps: it changes nothing until all is done."""
        return self._is_urgent

    def help(self) -> None:
        """Work as a blocked thread: until all is done, no thread returns from `reach`."""
        self._is_urgent = True
        self.work()

    def work(self) -> None:
        """Do pieces that no thread has started; return when all are done or have failed."""
        while self._do_next():
            pass
        with self._condition:
            self._condition.wait_for(lambda: not self._undone)

    def finish(self) -> None:
        """Do the work and raise the exception of a failed piece of any thread."""
        self.work()
        self._raise()

    def reach(self, count: int) -> None:
        """Return when the first `count` pieces are done; if a thread is blocked, when all are done.

        Raises the exception of a failed piece.
        """
        while not self._has_reached(count) and self._do_next():
            pass
        with self._condition:
            self._condition.wait_for(lambda: self._has_reached(count))
        self._raise()

    def _has_reached(self, count: int) -> bool:
        with self._condition:
            if self._error is not None or not self._undone:
                return True
            return not self._is_urgent and min(self._undone) >= count

    def _do_next(self) -> bool:
        """Do the next piece that no thread has started; return whether there was one."""
        try:
            number, piece = self._rest.popleft()
        except IndexError:
            return False
        if number >= self._count:
            with self._condition:
                self._condition.wait_for(lambda: min(self._undone) >= self._count)
        try:
            piece()
        except Exception as error:  # noqa: BLE001 - raised by finish() or reach()
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            with self._condition:
                self._undone.remove(number)
                self._condition.notify_all()
        return True

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
