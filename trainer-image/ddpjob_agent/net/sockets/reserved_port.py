"""A TCP port that the agent reserves for the user's processes, such as their own store.

The socket is bound and never listens, so the kernel assigns the port to no other process. A
listener with SO_REUSEADDR, such as torch's stores, can still bind the port. Linux only.
"""

from __future__ import annotations

from ddpjob_agent.net.sockets.listening import bind


class ReservedPort:
    """A reserved port, held until it is closed."""

    def __init__(self) -> None:
        self._socket = bind("", 0)
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
