"""A TCP port that is kept free for the user's processes, such as a store of theirs.

It is bound and never listened on: nobody else is given it, and a listener that says SO_REUSEADDR,
as torch's stores do, may still take it. Linux only.
"""

from __future__ import annotations

import socket


class ReservedPort:
    """Held until it is closed."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Anybody may have it now."""
        self._socket.close()
