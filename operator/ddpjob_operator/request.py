"""A request to the API server or to a job's rendezvous service: JSON over HTTP.

May not: send anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Request:
    """A request; the client adds the address of the server."""

    method: str
    path: str
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout: float = 30.0  # seconds for each attempt
