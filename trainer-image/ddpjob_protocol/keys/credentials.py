"""The keys of a job: the operator derives all of them from its own key.

    operator's key ─ UID ─► job's key ─► operator's proof, seal of memberships, service
                                     └─► one key for each worker, one for the transfers of workers

The rendezvous service has the job's key, because it verifies every worker. A worker has its own key
and that of the transfers. With its own key it also verifies the service: no other worker has it.
May not: read a file or draw a number.
"""

from __future__ import annotations

import hmac
import json
from typing import Any, NamedTuple

KEY_BYTES = 32
FINGERPRINT_LETTERS = 16
MAX_NAME = 255  # a handshake has one byte for the length


def derive(key: bytes, purpose: str, name: str = "") -> bytes:
    """Return another key, from which `key` cannot be computed."""
    return hmac.digest(key, f"ddpjob\0{purpose}\0{name}".encode(), "sha256")


class Credential(NamedTuple):
    """A name and its key, which one side of a connection proves to have."""

    name: str
    key: bytes

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"Credential({self.name!r})"


class WorkerKeys(NamedTuple):
    """The keys of one worker."""

    own: Credential
    peers: Credential  # for transfers between workers; all workers of the job have this key

    def to_text(self) -> str:
        """Return the content of the worker's file."""
        name, own, peers = self.own.name, self.own.key.hex(), self.peers.key.hex()
        return json.dumps({"worker": name, "key": own, "peers": peers})

    @classmethod
    def parse(cls, text: str) -> WorkerKeys:
        """Return the keys in a worker's file; raise ValueError."""
        found = _parse(text)
        name = found.get("worker")
        if not isinstance(name, str) or not name or not name.isascii() or len(name) > MAX_NAME:
            raise ValueError(f"no name of a worker, of up to {MAX_NAME} ASCII letters")
        return cls(Credential(name, _key(found, "key")), Credential(name, _key(found, "peers")))


class JobKey:
    """The key of one job; the operator and the job's rendezvous service have it."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def of(cls, operator_key: bytes, job_uid: str) -> JobKey:
        """Return the key of the job with this UID."""
        return cls(derive(operator_key, "job", job_uid))

    @property
    def operator(self) -> bytes:
        """Key with which the operator signs its requests, and the service its answers."""
        return derive(self._key, "operator")

    @property
    def memberships(self) -> bytes:
        """Key of the seal of this job's memberships, which no worker has."""
        return derive(self._key, "memberships")

    @property
    def fingerprint(self) -> str:
        """A text that differs for another key, and does not reveal this one."""
        return derive(self._key, "fingerprint").hex()[:FINGERPRINT_LETTERS]

    def worker(self, name: str) -> bytes:
        """Return the key of a worker, which it shares with the service only."""
        return derive(self._key, "worker", name)

    def worker_keys(self, name: str) -> WorkerKeys:
        """Return all keys that a worker gets."""
        peers = Credential(name, derive(self._key, "peers"))
        return WorkerKeys(Credential(name, self.worker(name)), peers)

    def to_text(self) -> str:
        """Return the content of the service's file."""
        return json.dumps({"job": self._key.hex()})

    @classmethod
    def parse(cls, text: str) -> JobKey:
        """Return the key in the service's file; raise ValueError."""
        return cls(_key(_parse(text), "job"))


def _parse(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("not JSON") from error
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - one error for all contents
    return found


def _key(found: dict[str, Any], field: str) -> bytes:
    text = found.get(field)
    key = bytes.fromhex(text) if isinstance(text, str) else b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"{field!r} is not a key of {KEY_BYTES} bytes")
    return key
