"""Long bytes as parts of several messages, so that no frame grows with them.

A part is the fields `data` (base64) and, except in the last one, `more`.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddpjob_protocol.messages.agent import Message

PART_BYTES = 512 * 1024  # before base64


def parts_of(data: bytes) -> Iterator[Message]:
    """Return the fields of the parts; one part if there are no bytes."""
    for begin in range(0, max(1, len(data)), PART_BYTES):
        end = begin + PART_BYTES
        text = base64.b64encode(data[begin:end]).decode()
        yield {"data": text, "more": True} if end < len(data) else {"data": text}
