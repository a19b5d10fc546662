"""Proofs of the operator's requests to the rendezvous service, and of its answers.

A request proves the operator's key over method, path, query, digest of the body, the service's
challenge and a new nonce. The head is enough to verify the proof. A service draws its challenge at
its start, and another after MAX_NONCES requests; it accepts no nonce twice. So a request that was
recorded is worth nothing. A request with an older challenge, or without one, gets the present one.
An answer proves the key over its content and the request's nonce.

Both sides write values as canonical JSON before they compute a digest, because a proxy in between
may write the same value in another way.
May not: draw a number or send anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

PROOF_HEADER = "X-DDPJob-Proof"  # not Authorization: the API server's proxy removes that one
MAX_NONCES = 4096
MAX_NONCE_LETTERS = 64


class ForgedError(Exception):
    """A request or an answer without the proof that its sender has the key."""


class Proof(NamedTuple):
    """The proof in the head of a request, after it was verified."""

    nonce: str
    digest: str  # of the body
    is_fresh: bool  # it has the present challenge; if not, only the challenge may be answered


class Answer(NamedTuple):
    """An answer of the service."""

    content: Any


class RequestSigner:
    """The operator's side."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._challenge = ""

    def sign(
        self, method: str, path: str, query: Mapping[str, str], body: object, nonce: str
    ) -> Mapping[str, str]:
        """Return the headers of a request; `nonce` must be new."""
        digest = digest_of(body)
        words = (method, path, sorted(query.items()), digest, self._challenge, nonce)
        proof = _code(self._key, "request", words)
        return {PROOF_HEADER: f"{nonce} {digest} {self._challenge or '-'} {proof}"}

    def open(self, sealed: object, nonce: str) -> Answer | None:
        """Return the answer to the request with this nonce; None: sign and send it once more.

        Raise ForgedError.
        """
        found = sealed if isinstance(sealed, dict) else {}
        answer, challenge = found.get("answer"), found.get("challenge")
        proof = _code(self._key, "answer", (answer, challenge, nonce))
        if not _equal(str(found.get("proof")), proof):
            raise ForgedError("it has no proof of the job's key")
        if challenge is None:
            return Answer(answer)
        self._challenge = str(challenge)
        return None


class RequestVerifier:
    """The service's side."""

    def __init__(self, key: bytes, draw: Callable[[], str]) -> None:
        """`draw` returns a text that no peer can predict."""
        self._key = key
        self._draw = draw
        self._challenge = draw()
        self._nonces: set[str] = set()

    def verify(self, method: str, path: str, query: Iterable[tuple[str, str]], head: str) -> Proof:
        """Return the proof in the value of PROOF_HEADER. Raise ForgedError."""
        words = head.split(" ")
        if len(words) != 4 or len(words[0]) > MAX_NONCE_LETTERS:
            raise ForgedError(f"{PROOF_HEADER} has no proof of the job's key")
        nonce, digest, challenge, proof = words
        challenge = "" if challenge == "-" else challenge
        signed = (method, path, sorted(query), digest, challenge, nonce)
        if not _equal(proof, _code(self._key, "request", signed)):
            raise ForgedError(f"{PROOF_HEADER} has no proof of the job's key")
        if challenge != self._challenge:
            return Proof(nonce, digest, is_fresh=False)
        if nonce in self._nonces:
            raise ForgedError("this request was sent before")
        self._nonces.add(nonce)
        if len(self._nonces) >= MAX_NONCES:
            self._challenge = self._draw()
            self._nonces.clear()
        return Proof(nonce, digest, is_fresh=True)

    def seal(self, answer: object, proof: Proof) -> dict[str, Any]:
        """Return an answer with the service's own proof."""
        return self._sealed(answer, None, proof.nonce)

    def challenge(self, proof: Proof) -> dict[str, Any]:
        """Return the answer to a request with an older challenge."""
        return self._sealed(None, self._challenge, proof.nonce)

    def _sealed(self, answer: object, challenge: str | None, nonce: str) -> dict[str, Any]:
        code = _code(self._key, "answer", (answer, challenge, nonce))
        return {"answer": answer, "challenge": challenge, "proof": code}


def digest_of(body: object) -> str:
    """Return the digest of a body; None has one, too."""
    return hashlib.sha256(_canonical(body)).hexdigest()


def _code(key: bytes, purpose: str, words: object) -> str:
    return hmac.digest(key, purpose.encode() + b"\0" + _canonical(words), "sha256").hex()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
