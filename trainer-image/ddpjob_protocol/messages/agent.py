"""Messages between an agent and the rendezvous service."""

from __future__ import annotations

import dataclasses
from typing import Any

Message = dict[str, Any]  # JSON; "type" names the kind
PROTOCOL = 3  # increased if an older peer could misread a newer peer


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failure of a worker's command, as its first failing process reported it."""

    at: float  # seconds since the epoch, on the clock of the failing node
    summary: str  # one line
    traceback: str = ""  # of the first failing rank, if it left one
    rank: int | None = None
    exit_code: int | None = None
    secondary: bool = False  # probably a result of another process's death
    permanent: bool = False  # a restart cannot help
    reason: str = ""  # a `FailureReason`, if one is known
    worker: str = ""  # of the process; empty: of the agent that reports it
