"""Derived keys: each party has its own, the same after every start, and none shows in a text."""

from __future__ import annotations

import dataclasses

import pytest

from ddpjob_protocol.keys.credentials import JobKey, WorkerKeys, derive
from ddpjob_protocol.keys.membership_seal import MembershipSeal
from ddpjob_protocol.messages.membership import Cause, Membership, MembershipId
from support.keys import KEY, OPERATOR_KEY, SEAL


def test_no_two_parties_have_one_key() -> None:
    jobs = [JobKey.of(OPERATOR_KEY, uid) for uid in ("one", "two")]
    jobs.append(JobKey.of(b"another operator's key of 32 bytes or so", "one"))
    found = []
    for job in jobs:
        found += [job.operator, job.worker_keys("a").peers.key, bytes.fromhex(job.to_text()[9:-2])]
        found += [job.worker(name) for name in ("a", "b", "operator", "peers", "")]
    assert len(set(found)) == len(found)
    assert len({job.fingerprint for job in jobs}) == len(jobs)


def test_keys_are_derived_again() -> None:
    first, second = (JobKey.of(OPERATOR_KEY, "a UID") for _ in range(2))
    assert first.to_text() == second.to_text()
    assert first.worker_keys("a") == second.worker_keys("a")
    assert first.fingerprint == second.fingerprint


def test_the_files_have_what_their_readers_need() -> None:
    keys = KEY.worker_keys("digits-worker-000-1")
    assert WorkerKeys.parse(keys.to_text()) == keys
    assert JobKey.parse(KEY.to_text()).worker_keys("digits-worker-000-1") == keys
    assert KEY.fingerprint not in KEY.to_text() + keys.to_text()


def test_a_text_for_people_has_no_key() -> None:
    keys = KEY.worker_keys("a")
    shown = f"{keys} {keys.own!r} {KEY} {KEY!r}"
    assert not any(key.hex() in shown or repr(key) in shown for key in (keys.own.key, KEY.operator))


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", "[" * 100_000, '{"worker": "a"}', '{"worker": "a", "key": "00"}',
        '{"worker": 1, "key": 5, "peers": 6}', '{"job": "x"}', '{"job": ["00"]}',
    ],
)  # fmt: skip
def test_a_file_without_keys_is_refused(text: str) -> None:
    for parse in (WorkerKeys.parse, JobKey.parse):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)


def test_no_key_of_a_worker_makes_the_seal() -> None:
    membership = Membership(MembershipId(1, 1, 1), (), Cause.STARTED, "")
    keys, seal = KEY.worker_keys("a"), SEAL.of(membership)
    held = (keys.own.key, keys.peers.key, KEY.operator)
    for key in (*held, *(derive(key, "memberships") for key in held)):
        assert MembershipSeal(key).of(membership) != seal


def test_a_seal_is_for_one_membership_with_all_its_facts() -> None:
    membership = Membership(MembershipId(1, 1, 1), (), Cause.STARTED, "")
    seal = SEAL.of(membership)
    assert SEAL.is_genuine(membership, seal)
    for change in ({"failures": 1}, {"detail": "x"}, {"id": MembershipId(1, 1, 2)}, {"after": 5}):
        assert not SEAL.is_genuine(dataclasses.replace(membership, **change), seal)
    odds: tuple[object, ...] = ("", None, 7, [], "\ud800", seal.upper())
    for odd in odds:
        assert not SEAL.is_genuine(membership, odd)
