"""Exit codes of the agent and of the rendezvous service."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of the agent and of the rendezvous service, documented in docs/exit-codes.md."""

    OK = 0
    FAILED = 1  # the job failed; the reason is in the termination message
    USAGE = 2  # a variable or flag is missing or wrong
    PORT_IN_USE = 3
    REJECTED = 4  # the service rejected the key, the protocol, or a worker that was replaced
    SUPERSEDED = 5  # the agents obey a service of a higher term or boot
    STOPPED = 143  # SIGTERM
