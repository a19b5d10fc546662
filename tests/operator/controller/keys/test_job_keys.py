"""The key of a job follows from its live pods, and from the keys of the operator."""

from __future__ import annotations

import pytest

from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.manifests.parse import Pod
from ddpjob_operator.planner.observed import Rendezvous
from ddpjob_protocol.keys.credentials import JobKey
from support.builders import make_worker

UID = "the UID of a job"
NEW, OLD, OLDEST = (name.encode() * 32 for name in ("n", "o", "x"))
FOREIGN = b"f" * 32


def pod(key: bytes, *, service: bool = False, live: bool = True) -> Pod:
    fingerprint = JobKey.of(key, UID).fingerprint
    worker = None if service else make_worker(key=fingerprint)
    rendezvous = Rendezvous(1, key=fingerprint) if service else None
    return Pod("ns", "a", "1", "1", "job", UID, "", worker, rendezvous, not live, live)


@pytest.mark.parametrize(
    ("pods", "key"),
    [
        pytest.param([], NEW, id="none"),
        pytest.param([pod(NEW)], NEW, id="new"),
        pytest.param([pod(OLD)], OLD, id="old"),
        pytest.param([pod(OLDEST)], OLDEST, id="oldest"),
        pytest.param([pod(OLD, live=False)], NEW, id="ended"),
        pytest.param([pod(OLD, live=False), pod(OLDEST)], OLDEST, id="ended_and_live"),
        pytest.param([pod(FOREIGN)], NEW, id="foreign"),
        pytest.param([pod(FOREIGN), pod(OLD)], OLD, id="foreign_and_old"),
        pytest.param([pod(NEW), pod(OLD, service=True)], OLD, id="the_service_tells_first"),
        pytest.param([pod(OLD), pod(NEW, service=True)], NEW, id="also_if_it_has_the_new_one"),
    ],
)
def test_the_key_of_a_job(pods: list[Pod], key: bytes) -> None:
    found = JobKeys(NEW, [OLD, OLDEST]).key_of(UID, pods)
    assert found.fingerprint == JobKey.of(key, UID).fingerprint


def test_without_earlier_keys_there_is_one() -> None:
    found = JobKeys(NEW).key_of(UID, [pod(OLD, service=True)])
    assert found.fingerprint == JobKey.of(NEW, UID).fingerprint
