"""Proofs of requests and answers: what counts, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from ddpjob_protocol.keys.signed_http import (
    MAX_NONCES,
    PROOF_HEADER,
    ForgedError,
    RequestSigner,
    RequestVerifier,
    digest_of,
)
from support.keys import ANOTHER_KEY, KEY

QUERY = {"after": "3", "timeout": "0.5"}
BODY = {"workers": ["a", "b"]}
Words = tuple[str, str, Mapping[str, str], object]
RIGHT: Words = ("PUT", "/expected", QUERY, BODY)


class Pair:
    """An operator and a service."""

    def __init__(self, key: bytes = KEY.operator) -> None:
        self.signer = RequestSigner(key)
        self.nonces = map(str, itertools.count())
        self.restart()

    def restart(self) -> None:
        """A new service, with the same key."""
        drawn = f"service {id(object())}".replace(" ", "-")
        numbers = itertools.count()
        self.verifier = RequestVerifier(KEY.operator, lambda: f"{drawn}-{next(numbers)}")

    def learn(self) -> None:
        """Get the challenge."""
        head, nonce = self.head()
        proof = self.verifier.verify("PUT", "/expected", QUERY.items(), head)
        assert not proof.is_fresh
        assert self.signer.open(self.verifier.challenge(proof), nonce) is None

    def head(self, words: Words = RIGHT) -> tuple[str, str]:
        """Return the proof of a request, and its nonce."""
        nonce = next(self.nonces)
        return self.signer.sign(*words, nonce)[PROOF_HEADER], nonce

    def is_fresh(self, head: str, words: Words = RIGHT) -> bool:
        method, path, query, _ = words
        return self.verifier.verify(method, path, query.items(), head).is_fresh


@pytest.fixture
def pair() -> Pair:
    found = Pair()
    found.learn()
    return found


def test_a_request_counts_and_its_answer_is_believed(pair: Pair) -> None:
    for answer in ({"step": 1.5, "ok": True}, None, [1], "text"):
        head, nonce = pair.head()
        proof = pair.verifier.verify("PUT", "/expected", reversed(list(QUERY.items())), head)
        assert (proof.is_fresh, proof.digest) == (True, digest_of(dict(BODY)))
        opened = pair.signer.open(pair.verifier.seal(answer, proof), nonce)
        assert opened is not None
        assert opened.content == answer


@pytest.mark.parametrize(
    "other",
    [
        ("GET", "/expected", QUERY, BODY),
        ("PUT", "/report", QUERY, BODY),
        ("PUT", "/expected", {**QUERY, "after": "4"}, BODY),
        ("PUT", "/expected", {}, BODY),
    ],
)
def test_a_proof_is_for_one_request(pair: Pair, other: Words) -> None:
    head, _ = pair.head()
    with pytest.raises(ForgedError):
        pair.is_fresh(head, other)
    assert pair.is_fresh(head)


def test_a_proof_is_for_one_body(pair: Pair) -> None:
    head, _ = pair.head()
    nonce, _, *rest = head.split(" ")
    with pytest.raises(ForgedError):
        pair.is_fresh(" ".join([nonce, digest_of({"workers": []}), *rest]))


@pytest.mark.parametrize("head", ["", "x", "a b c", "a b c d", "a b c d e", f"{'n' * 65} b c d"])
def test_what_is_no_proof_is_refused(pair: Pair, head: str) -> None:
    with pytest.raises(ForgedError):
        pair.is_fresh(head)


def test_a_proof_of_another_job_is_refused() -> None:
    with pytest.raises(ForgedError):
        Pair(ANOTHER_KEY.operator).learn()


def test_a_recorded_request_is_refused(pair: Pair) -> None:
    head, _ = pair.head()
    assert pair.is_fresh(head)
    with pytest.raises(ForgedError, match="sent before"):
        pair.is_fresh(head)
    pair.restart()
    assert not pair.is_fresh(head), "it gets the challenge only"


def test_a_recorded_request_is_refused_when_nonces_are_forgotten(pair: Pair) -> None:
    first, _ = pair.head()
    assert pair.is_fresh(first)
    for _ in range(MAX_NONCES - 1):
        assert pair.is_fresh(pair.head()[0])
    assert not pair.is_fresh(first)
    pair.learn()
    assert pair.is_fresh(pair.head()[0])


def test_a_nonce_of_another_request_is_not_that_of_an_answer(pair: Pair) -> None:
    head, _ = pair.head()
    proof = pair.verifier.verify("PUT", "/expected", QUERY.items(), head)
    sealed = pair.verifier.seal({}, proof)
    wrongs: list[object] = [sealed, {**sealed, "challenge": "mine"}, {}, None, [], {"answer": {}}]
    for wrong in wrongs:
        with pytest.raises(ForgedError):
            pair.signer.open(wrong, "another")


def test_a_challenge_cannot_become_an_answer(pair: Pair) -> None:
    pair.restart()
    head, nonce = pair.head()
    proof = pair.verifier.verify("PUT", "/expected", QUERY.items(), head)
    sealed: dict[str, Any] = pair.verifier.challenge(proof)
    with pytest.raises(ForgedError):
        pair.signer.open({**sealed, "challenge": None}, nonce)
