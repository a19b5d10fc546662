"""A stored job is read field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ddpjob_operator.api.spec.pinned_fields import revision
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.api.stored_job import JobReader, read_stored_job
from support.objects import job

MEMBERSHIP = {
    "id": "1.1.1",
    "workers": ["digits-worker-000-1"],
    "worldSize": 1,
    "since": "2026-01-01T00:00:00Z",
    "cause": "started",
}
GROUPS = [
    {"name": "worker", "replicas": 2, "scheduled": 2, "ready": 2},
    {"name": "spot", "replicas": "some"},
]


def stored(status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    made = job("digits")
    return {**made, "spec": {**made["spec"], **spec}, "status": status}


def test_what_can_be_read_is_read_and_the_rest_is_written_again() -> None:
    raw = {
        "rendezvousTerm": 3,
        "state": "Running",
        "membership": {"id": 7},
        "groups": GROUPS,
        "fieldOfTomorrow": 1,
    }
    found = read_stored_job(stored(raw))
    assert found.job is not None
    assert (found.status.rendezvous_term, found.status.state) == (3, "Running")
    assert [group.name for group in found.status.groups] == ["worker"]
    assert found.unread == {"membership": {"id": 7}, "groups": GROUPS[1:]}
    written = found.status_to_write(found.status)
    assert written["membership"] == {"id": 7}
    assert written["groups"] == GROUPS[:1]
    new = found.status.model_copy(
        update={"membership": DDPJobStatus.model_validate({"membership": MEMBERSHIP}).membership}
    )
    assert found.status_to_write(new)["membership"]["id"] == "1.1.1"


REFUSED = [
    {"fieldOfTomorrow": {"a": 1}},
    {"elastic": {"settleSeconds": -1}},
    {"elastic": {"joinPolicy": "Sometimes"}},
    {"minReplicas": 9},
    {"extraWorkerGroups": [{"name": "spot", "replicas": 1, "color": "red"}]},
]


@pytest.mark.parametrize("spec", REFUSED, ids=lambda spec: next(iter(spec)))
def test_a_refused_spec_is_read_as_far_as_possible_once_the_job_has_trained(
    spec: dict[str, Any],
) -> None:
    new = read_stored_job(stored({}, **spec))
    assert new.job is None
    assert new.problems
    found = read_stored_job(stored({"membership": MEMBERSHIP}, **spec))
    assert found.problems == new.problems
    assert found.job is not None
    assert found.job.spec.replicas == 2
    assert found.job.spec.groups()
    assert found.job.policy().minimum >= 1


def nested(levels: int) -> dict[str, Any]:
    """A mapping in a mapping, and so on."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


FREE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "template": lambda value: {"template": {"spec": {"volumes": [value]}}},
    "env[0].valueFrom": lambda value: {"env": [{"name": "A", "valueFrom": value}]},
    "rendezvous.tolerations[0]": lambda value: {"rendezvous": {"tolerations": [value]}},
    "snapshot.storage": lambda value: {"snapshot": {"storage": value}},
}


@pytest.mark.parametrize("field", FREE)
def test_a_field_of_any_form_has_a_bounded_depth(field: str) -> None:
    """The API server stores up to 10,000 levels; each of them is a call of what comes later."""
    for levels in (300, 9990):
        spec = FREE[field](nested(levels))
        found = read_stored_job(stored({}, **spec))
        assert found.job is None
        assert found.problems == f"spec.{field}: has more than 100 levels; nest it less deeply"
        ended = read_stored_job(stored({"membership": MEMBERSHIP, "state": "Failed"}, **spec))
        assert ended.job is not None
        assert revision(ended.job.spec)
    found = read_stored_job(stored({}, **FREE[field](nested(90))))
    assert found.job is not None
    assert revision(found.job.spec)


def test_a_spec_without_a_shape_cannot_be_read() -> None:
    raw = {**stored({"membership": MEMBERSHIP, "state": "Running"}), "spec": "all"}
    found = read_stored_job(raw)
    assert found.job is None
    assert found.problems
    assert found.status.state == "Running"


def test_a_spec_is_validated_again_only_if_it_differs() -> None:
    reader, raw = JobReader(), stored({}, replicas=2)
    first = reader.read(raw).job
    newer = {
        **raw,
        "metadata": {**raw["metadata"], "labels": {"team": "a"}},
        "status": {"state": "Running"},
    }
    second = reader.read(newer)
    assert first is not None
    assert second.job is not None
    assert second.job.spec is first.spec
    assert second.job.metadata.labels == {"team": "a"}
    assert second == read_stored_job(newer)
    assert reader.read({**raw, "spec": {**raw["spec"], "replicas": -1}}).problems
    assert reader.read({**raw, "apiVersion": "ddpjob.io/v9"}).problems
    reader.forget((raw["metadata"].get("namespace", ""), raw["metadata"]["name"]))
    third = reader.read(raw).job
    assert third is not None
    assert third.spec is not first.spec
