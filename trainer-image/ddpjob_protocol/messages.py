"""What an agent and the rendezvous service send each other."""

from __future__ import annotations

import dataclasses
from typing import Any

Message = dict[str, Any]  # JSON; "type" says which
PROTOCOL = 2  # raised when an older peer could misread a newer one


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a worker's command ended badly, told in the words of the process that failed first."""

    at: float  # seconds since the epoch, on the clock of the failing node
    summary: str  # one line
    traceback: str = ""  # of the first failing rank, if it left one
    rank: int | None = None
    exit_code: int | None = None
    consequential: bool = False  # looks like the echo of another process's death
    permanent: bool = False  # trying again cannot help: the command does not exist
