"""File descriptors of an agent or a service: a higher limit, and one descriptor in reserve.

Many images have a soft limit of 1,024 descriptors. The user's processes start with the limit that
this process had, because programs with `select` fail above 1,024.
"""

from __future__ import annotations

import contextlib
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

MOST_DESCRIPTORS = 65_536  # programs that visit each possible descriptor become slow above


class _SoftLimit:
    """The soft limit of this process; `given` is the limit before it was raised."""

    given: int | None = None


def raise_limit() -> None:
    """Raise the soft limit of descriptors to the hard limit, at most to MOST_DESCRIPTORS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        _SoftLimit.given = soft


@contextlib.contextmanager
def given_limit() -> Iterator[None]:
    """Restore the limit before `raise_limit`, for a child that starts within this context."""
    raised, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    given = raised if _SoftLimit.given is None else _SoftLimit.given
    resource.setrlimit(resource.RLIMIT_NOFILE, (given, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


class DescriptorReserve:
    """A descriptor that is released to refuse a connection when no other one is free."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._refill()

    def refuse(self, listener: socket.socket) -> bool:
        """Accept and close the next connection; return whether the reserve is full again."""
        if self._descriptor is None:
            return self._refill()
        self.close()
        with contextlib.suppress(OSError):
            listener.accept()[0].close()
        return self._refill()

    def close(self) -> None:
        """Release the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _refill(self) -> bool:
        with contextlib.suppress(OSError):
            self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor is not None
