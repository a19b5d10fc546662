"""Jobs that are accepted, and what they come to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from ddpjob_operator.api.spec import DDPJob
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.failures.failure_rules import FailureRule
from ddpjob_protocol.messages.control import Policy
from support.builders import make_job

SPOT = {"name": "spot", "replicas": 2}
LIMIT = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
SIDE: dict[str, Any] = {"name": "side", "command": ["log"]}
BARE: dict[str, Any] = {
    "spec": {"containers": [{"name": "own", "image": "i", "command": ["torchrun", "train.py"]}]}
}


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    """A template of these containers."""
    return {"spec": {"containers": list(containers)}}


def test_a_job_is_as_short_as_the_design_says() -> None:
    job = make_job(replicas=2, image="my/trainer", gpusPerWorker=1)
    (group,) = job.spec.groups()
    assert (group.name, group.replicas, group.minimum, group.maximum) == ("worker", 2, 1, 2)
    assert (group.processes, group.command) == (1, ("torchrun", "train.py"))


@pytest.mark.parametrize(
    "amount", [2, 2.0, "2", "2.0", "+2.", "2000m", "2e0", ".5k", "1Ki", "1e999"]
)
def test_whole_gpus(amount: object) -> None:
    limits = {"limits": {"nvidia.com/gpu": amount, "cpu": "500m"}}
    assert make_job(resources=limits).spec.resources


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        pytest.param({}, 1, id="cpu"),
        pytest.param({"gpusPerWorker": 4}, 4, id="one_for_each_gpu"),
        pytest.param({"gpusPerWorker": 4, "processesPerWorker": "auto"}, 4, id="auto"),
        pytest.param({"gpusPerWorker": 4, "processesPerWorker": 2}, 2, id="fixed"),
        pytest.param({"gpusPerWorker": 0}, 1, id="no_gpu"),
        pytest.param(LIMIT, 4, id="limit"),
        pytest.param({"resources": {"limits": {"nvidia.com/gpu": "3"}}}, 3, id="limit_as_text"),
        pytest.param({**LIMIT, "gpuResource": "amd.com/gpu"}, 1, id="limit_of_something_else"),
        pytest.param(
            {
                "command": None,
                "template": pod(SIDE, {"name": "trainer", "command": ["x"], **LIMIT}),
            },
            4,
            id="limit_in_the_template",
        ),
    ],
)
def test_processes_of_a_worker(fields: dict[str, Any], processes: int) -> None:
    assert make_job(**fields).spec.groups()[0].processes == processes


@pytest.mark.parametrize(
    "uri", ["s3://b", "s3://my-bucket/jobs/digits/", "gs://my_bucket/a.b/c=1", "az://container/x"]
)
def test_a_bucket_for_snapshots(uri: str) -> None:
    assert make_job(snapshot={"uri": uri}).spec.snapshot.uri == uri


def test_extra_groups_take_what_they_do_not_give_from_the_main_group() -> None:
    job = make_job(
        args=["--epochs", "3"],
        gpusPerWorker=4,
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        extraWorkerGroups=[
            {**SPOT, "gpusPerWorker": 2, "env": [{"name": "B", "value": "2"}]},
            {"name": "other", "replicas": 1, "command": ["torchrun", "x.py"]},
        ],
    )
    main, spot, other = job.spec.groups()
    assert main.command == spot.command == ("torchrun", "train.py", "--epochs", "3")
    assert (spot.processes, spot.minimum) == (2, 0)
    assert [(entry.name, entry.value) for entry in spot.env] == [("A", "1"), ("B", "2")]
    assert (other.command, other.processes) == (("torchrun", "x.py"), 4)


def test_extra_groups_take_the_template_of_the_main_group_or_bring_their_own() -> None:
    job = make_job(
        command=None,
        template=pod(SIDE, {"name": "trainer", "command": ["torchrun"], "args": ["a.py"], **LIMIT}),
        extraWorkerGroups=[SPOT, {"name": "other", "replicas": 1, "template": BARE}],
    )
    main, spot, other = job.spec.groups()
    assert spot.template == main.template
    assert main.command == spot.command == ("torchrun", "a.py")
    assert (main.gpus, spot.gpus) == (4, 4)
    assert (other.template, other.command, other.gpus) == (BARE, ("torchrun", "train.py"), 0)


@pytest.mark.parametrize(
    ("spec", "paused"),
    [
        pytest.param({"replicas": 1}, False, id="workers"),
        pytest.param({"replicas": 0}, True, id="none"),
        pytest.param({"replicas": 0, "maxReplicas": 4}, True, id="none_for_now"),
        pytest.param({"replicas": 0, "minReplicas": 2, "maxReplicas": 4}, True, id="with_minimum"),
        pytest.param({"replicas": 0, "extraWorkerGroups": [SPOT]}, False, id="in_another_group"),
        pytest.param(
            {"replicas": 0, "extraWorkerGroups": [{**SPOT, "replicas": 0, "minReplicas": 1}]},
            True,
            id="none_in_any_group",
        ),
        pytest.param({"suspend": True}, True, id="suspended"),
        pytest.param({"suspend": True, "minReplicas": 3, "maxReplicas": 3}, True, id="and_too_few"),
    ],
)
def test_a_job_without_workers_pauses(spec: dict[str, Any], paused: bool) -> None:
    assert make_job(**spec).spec.paused is paused


def test_the_main_group_may_be_empty_when_another_has_workers() -> None:
    job = make_job(replicas=0, extraWorkerGroups=[SPOT])
    assert job.spec.groups()[0].minimum == 0
    assert job.spec.minimum == 1


def test_policy_is_what_the_service_decides_by() -> None:
    job = make_job(
        replicas=3,
        minReplicas=2,
        extraWorkerGroups=[{**SPOT, "minReplicas": 1}],
        elastic={"joinPolicy": "Never", "settleSeconds": 1},
        failurePolicy={
            "maxRestarts": {"infrastructure": 9},
            "backoffSeconds": 0.5,
            "windowSeconds": 3600,
            "onHang": "Restart",
            "rules": [
                {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [3, 137]}},
                {"action": "Ignore", "onReasons": ["NodeLost"]},
            ],
        },
    )
    expected = Policy(
        minimum=3, minimums=(("digits-spot", 1),), join_policy="Never",
        settle=1, max_losses=9, backoff=0.5, window=3600, on_hang="Restart",
        rules=(
            FailureRule("FailJob", exit_codes=(3, 137), other_codes=True),
            FailureRule("Ignore", reasons=("NodeLost",)),
        ),
    )  # fmt: skip
    assert job.policy() == expected
    assert decode(Policy, json.loads(json.dumps(encode(expected)))) == expected
    pool = make_job(replicas=3, minReplicas=2, extraWorkerGroups=[SPOT])
    assert pool.policy() == Policy(minimum=2), "of whichever group"
    assert make_job().policy() == Policy()


def test_patience_with_silence_is_the_same_at_all_levels_if_it_is_given() -> None:
    policy = make_job(elastic={"heartbeatSeconds": 7.5}).policy()
    assert policy == Policy(
        heartbeat_deadline=7.5, live_deadline=7.5, process_deadline=7.5, live_process_deadline=7.5
    )


def test_json_round_trip_keeps_everything() -> None:
    job = make_job(extraWorkerGroups=[SPOT], activeDeadlineSeconds=5)
    assert DDPJob.model_validate(job.to_json(), by_name=False) == job


def test_metadata_and_status_of_a_newer_server_are_read() -> None:
    data = make_job().to_json()
    data["metadata"]["managedFields"] = []
    data["status"]["fromTheFuture"] = 1
    assert DDPJob.model_validate(data, by_name=False) == make_job()


def _undescribed(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if not field.description:
            yield f"{model.__name__}.{name}"
        for inner in [field.annotation, *_parts(field.annotation)]:
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _undescribed(inner)


def _parts(annotation: Any) -> Iterator[Any]:
    for inner in get_args(annotation):
        yield inner
        yield from _parts(inner)


def test_every_field_is_described_for_the_crd() -> None:
    assert list(_undescribed(DDPJob)) == []


def test_a_groups_own_limit_wins_over_the_main_groups_gpus() -> None:
    spot = {**SPOT, "resources": {"limits": {"nvidia.com/gpu": 2}}}
    main, extra = make_job(gpusPerWorker=4, extraWorkerGroups=[spot]).spec.groups()
    assert (main.gpus, extra.gpus, extra.processes) == (4, 2, 2)
