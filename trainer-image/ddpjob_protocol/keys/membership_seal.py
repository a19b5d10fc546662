"""The seal of a membership: the proof that a service of this job has formed it.

A service keeps nothing on disk; after a restart it learns its membership from an agent. A worker
has no key of the seal, so it can return a membership, and cannot make one.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING

from ddpjob_protocol.codec import encode

if TYPE_CHECKING:
    from ddpjob_protocol.messages.membership import Membership


class MembershipSeal:
    """The seal of one job's memberships."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, membership: Membership) -> str:
        """Return the seal of a membership with all its facts."""
        text = json.dumps(encode(membership), sort_keys=True, separators=(",", ":"))
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    def is_genuine(self, membership: Membership, given: object) -> bool:
        """Return whether the given value is the seal of this membership."""
        text = str(given).encode("utf-8", "replace")
        return hmac.compare_digest(text, self.of(membership).encode())
