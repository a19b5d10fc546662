"""The limits of frames from agents, by what the service knows of the sender.

A peer without a key has the few hundred bytes of the handshake, and `net.strangers` bounds what is
read ahead. A reader of JSON takes up to twenty times the memory of its text, so a worker may send
no more than its messages need.
"""

from __future__ import annotations

MIB = 1 << 20
HELLO_BYTES = 4 * MIB  # the membership of 10,000 workers fits in
MESSAGE_BYTES = MIB  # the inventory of 1,000 replicas fits in
STORE_BYTES = 16 * MIB  # after a restart of the service, a value of 8 MiB fits in, as base64


def hello() -> int:
    """Return the limit for the first frame."""
    return HELLO_BYTES


def message(*, is_member: bool) -> int:
    """Return the limit for each further frame."""
    return STORE_BYTES if is_member else MESSAGE_BYTES
