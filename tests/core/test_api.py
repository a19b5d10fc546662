from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from builders import make_job
from ddpjob_agent.contract import Policy
from ddpjob_operator.api import NOT_YET, DDPJob
from ddpjob_operator.problems import problems

MINIMAL = {"replicas": 2, "command": ["torchrun", "train.py"]}
SPOT = {"name": "spot", "replicas": 2}
SIXTY = "x" * 60


def complaints(spec: dict[str, Any], name: str = "digits") -> list[str]:
    data = {"metadata": {"name": name}, "spec": spec}
    with pytest.raises(ValidationError) as caught:
        DDPJob.model_validate(data, by_name=False)
    return [str(problem) for problem in problems(caught.value)]


# --- what is refused -------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "minimum_above_maximum",
        {"minReplicas": 5, "maxReplicas": 3},
        "spec.minReplicas: is 5, above maxReplicas (3); lower it or raise maxReplicas",
    ),
    (
        "below_minimum",
        {"minReplicas": 3},
        "spec.replicas: is 2, below minReplicas (3); raise it or lower minReplicas",
    ),
    (
        "above_maximum",
        {"maxReplicas": 1},
        "spec.replicas: is 2, above maxReplicas (1); lower it or raise maxReplicas",
    ),
    (
        "no_workers",
        {"replicas": 0},
        "spec.replicas: is 0, and no other group has workers; use suspend: true to pause a job",
    ),
    (
        "no_workers_in_any_group",
        {"replicas": 0, "extraWorkerGroups": [{"name": "spot", "replicas": 0}]},
        "spec.replicas: is 0, and no other group has workers; use suspend: true to pause a job",
    ),
    ("negative_gpus", {"gpusPerWorker": -1}, "spec.gpusPerWorker: must be at least 0, not -1"),
    (
        "half_a_gpu",
        {"gpusPerWorker": 0.5},
        "spec.gpusPerWorker: must be a whole number, not 0.5",
    ),
    (
        "two_groups_of_one_name",
        {"extraWorkerGroups": [SPOT, SPOT]},
        (
            "spec.extraWorkerGroups[1].name: 'spot' is another group's name already; "
            "choose another one"
        ),
    ),
    (
        "group_called_worker",
        {"extraWorkerGroups": [{"name": "worker", "replicas": 1}]},
        "spec.extraWorkerGroups[0].name: 'worker' is the main group's name; choose another one",
    ),
    (
        "group_below_its_minimum",
        {"extraWorkerGroups": [{**SPOT, "minReplicas": 3}]},
        (
            "spec.extraWorkerGroups[0].replicas: is 2, below minReplicas (3); "
            "raise it or lower minReplicas"
        ),
    ),
    (
        "group_name",
        {"extraWorkerGroups": [{"name": "Spot_T4", "replicas": 1}]},
        (
            "spec.extraWorkerGroups[0].name: 'Spot_T4' is not a valid name; use lower-case letters, "
            "digits and '-', with a letter or digit first and last, 63 at most"
        ),
    ),
    (
        "no_command",
        {"command": None},
        "spec.command: is missing; give what each worker runs, for example [torchrun, train.py]",
    ),
    (
        "empty_command",
        {"command": []},
        "spec.command: is missing; give what each worker runs, for example [torchrun, train.py]",
    ),
    (
        "no_processes",
        {"processesPerWorker": 0},
        "spec.processesPerWorker: must be a whole number of at least 1, or auto, not 0",
    ),
    (
        "number_as_value",
        {"env": [{"name": "A", "value": 1}]},
        'spec.env[0].value: must be text; put it in quotes: "1"',
    ),
    (
        "truth_as_argument",
        {"args": ["--fast", True]},
        'spec.args[1]: must be text; put it in quotes: "true"',
    ),
    (
        "reserved_variable",
        {"env": [{"name": "DDPJOB_TOKEN", "value": "x"}]},
        "spec.env[0].name: 'DDPJOB_TOKEN' is set by ddpjob; choose a name that does not begin so",
    ),
    (
        "variable_name",
        {"env": [{"name": "A=B"}]},
        "spec.env[0].name: 'A=B' is not a valid name of an environment variable",
    ),
    (
        "policy_word",
        {"elastic": {"joinPolicy": "auto"}},
        "spec.elastic.joinPolicy: must be Auto, Immediate or Never, not 'auto'",
    ),
    (
        "endless_wait",
        {"elastic": {"settleSeconds": float("inf")}},
        "spec.elastic.settleSeconds: must be at least 0, not inf",
    ),
    (
        "text_for_truth",
        {"suspend": "yes"},
        "spec.suspend: must be true or false, not 'yes'",
    ),
    ("null_section", {"elastic": None}, "spec.elastic: is empty; give it a value or remove it"),
    ("list_for_mapping", {"network": []}, "spec.network: must be a mapping, not a list"),
    ("mapping_for_list", {"env": {"A": "b"}}, "spec.env: must be a list, not a mapping"),
    (
        "python_spelling",
        {"min_replicas": 1},
        "spec.min_replicas: unknown field 'min_replicas'; did you mean 'minReplicas'?",
    ),
    (
        "field_of_another_section",
        {"everySteps": 10},
        "spec.everySteps: unknown field 'everySteps' here; it belongs to spec.snapshot",
    ),
    ("unknown_field", {"zzz": 1}, "spec.zzz: unknown field 'zzz'; remove it"),
]


@pytest.mark.parametrize(
    ("spec", "message"), [pytest.param(spec, text, id=name) for name, spec, text in REFUSED]
)
def test_refuses_and_says_what_to_do(spec: dict[str, Any], message: str) -> None:
    assert complaints({**MINIMAL, **spec}) == [message]


NOT_SUPPORTED = "is not supported by this version; remove it"
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"scheduling": {"topologyKey": "zone"}}, f"spec.scheduling: {NOT_SUPPORTED}"),
    ({"resources": {"limits": {"cpu": 1}}}, f"spec.resources: {NOT_SUPPORTED}"),
    ({"snapshot": {"uri": "s3://bucket"}}, f"spec.snapshot.uri: {NOT_SUPPORTED}"),
    ({"snapshot": {"files": ["a.pt"]}}, f"spec.snapshot.files: {NOT_SUPPORTED}"),
    ({"snapshot": {"storage": {"a": 1}}}, f"spec.snapshot.storage: {NOT_SUPPORTED}"),
    ({"ttlSecondsAfterFinished": 1}, f"spec.ttlSecondsAfterFinished: {NOT_SUPPORTED}"),
    ({"keepPods": "All"}, f"spec.keepPods: {NOT_SUPPORTED}"),
    (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
        f"spec.env[0].valueFrom: {NOT_SUPPORTED}",
    ),
    (
        {"extraWorkerGroups": [{**SPOT, "env": [{"name": "A", "valueFrom": {}}]}]},
        f"spec.extraWorkerGroups[0].env[0].valueFrom: {NOT_SUPPORTED}",
    ),
    (
        {"extraWorkerGroups": [{**SPOT, "template": {}}]},
        f"spec.extraWorkerGroups[0].template: {NOT_SUPPORTED}",
    ),
    (
        {"launcher": "mpi"},
        "spec.launcher: 'mpi' is not supported by this version; use 'torchrun'",
    ),
    (
        {"gpuResource": "amd.com/gpu"},
        "spec.gpuResource: 'amd.com/gpu' is not supported by this version; use 'nvidia.com/gpu'",
    ),
    ({"command": None, "template": {"spec": {}}}, f"spec.template: {NOT_SUPPORTED}"),
]


@pytest.mark.parametrize(
    ("spec", "message"),
    [pytest.param(spec, text, id=text.partition(":")[0]) for spec, text in UNSUPPORTED],
)
def test_refuses_what_nothing_acts_on(spec: dict[str, Any], message: str) -> None:
    assert complaints({**MINIMAL, **spec}) == [message]


def test_every_unsupported_field_is_in_the_table_of_tests() -> None:
    tried = {text.partition(":")[0].removeprefix("spec.") for _, text in UNSUPPORTED}
    assert {path.replace("[0]", ".*") for path in tried} == set(NOT_YET)


POD = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 4}}}]}}
COMBINED = "cannot be combined with template; move it into the template's container"
LIMITED = "is given, and a limit of nvidia.com/gpu, too; remove one of the two"


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        pytest.param({"template": {}}, [f"spec.command: {COMBINED}"], id="command"),
        pytest.param(
            {"template": {}, "image": "i", "env": [{"name": "A"}]},
            [f"spec.image: {COMBINED}", f"spec.command: {COMBINED}", f"spec.env: {COMBINED}"],
            id="image_and_env",
        ),
        pytest.param(
            {"template": POD, "gpusPerWorker": 4, "command": None},
            [f"spec.gpusPerWorker: {LIMITED}"],
            id="gpus_and_limit_in_template",
        ),
        pytest.param(
            {"resources": {"limits": {"nvidia.com/gpu": 1}}, "gpusPerWorker": 1},
            [f"spec.gpusPerWorker: {LIMITED}"],
            id="gpus_and_limit_in_resources",
        ),
        pytest.param(
            {"template": {"spec": [1]}, "gpusPerWorker": 4, "command": None},
            [],
            id="template_of_a_strange_shape",
        ),
    ],
)
def test_refuses_two_sources_of_one_thing(spec: dict[str, Any], messages: list[str]) -> None:
    found = complaints({**MINIMAL, **spec})
    assert [each for each in found if NOT_SUPPORTED not in each] == messages


def test_tells_all_problems_at_once() -> None:
    spec = {**MINIMAL, "minReplicas": 3, "keepPods": "All", "extraWorkerGroups": [SPOT, SPOT]}
    assert len(complaints(spec)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(
            "My_Job",
            "metadata.name: 'My_Job' is not a valid name; use lower-case letters, digits and '-', "
            "with a letter or digit first and last, 63 at most",
            id="characters",
        ),
        pytest.param(
            SIXTY,
            "metadata.name: is too long: with 'worker', the longest name of a group, it has 66 "
            "characters; shorten it to 50 together",
            id="length",
        ),
    ],
)
def test_refuses_names_that_children_could_not_have(name: str, message: str) -> None:
    assert complaints(MINIMAL, name) == [message]


# --- what is accepted ------------------------------------------------------------------------------


def test_a_job_is_as_short_as_the_design_says() -> None:
    job = make_job(replicas=2, image="my/trainer", gpusPerWorker=1)
    (group,) = job.spec.groups()
    assert (group.name, group.replicas, group.minimum, group.maximum) == ("worker", 2, 1, 2)
    assert (group.processes, group.command) == (1, ("torchrun", "train.py"))


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        pytest.param({}, 1, id="cpu"),
        pytest.param({"gpusPerWorker": 4}, 4, id="one_for_each_gpu"),
        pytest.param({"gpusPerWorker": 4, "processesPerWorker": "auto"}, 4, id="auto"),
        pytest.param({"gpusPerWorker": 4, "processesPerWorker": 2}, 2, id="fixed"),
        pytest.param({"gpusPerWorker": 0}, 1, id="no_gpu"),
    ],
)
def test_processes_of_a_worker(fields: dict[str, Any], processes: int) -> None:
    assert make_job(**fields).spec.groups()[0].processes == processes


def test_extra_groups_take_what_they_do_not_give_from_the_main_group() -> None:
    job = make_job(
        args=["--epochs", "3"],
        gpusPerWorker=4,
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        extraWorkerGroups=[
            {**SPOT, "gpusPerWorker": 2, "env": [{"name": "B", "value": "2"}]},
            {"name": "other", "replicas": 1, "command": ["python", "x.py"]},
        ],
    )
    main, spot, other = job.spec.groups()
    assert main.command == spot.command == ("torchrun", "train.py", "--epochs", "3")
    assert (spot.processes, spot.minimum, dict(spot.env)) == (2, 0, {"A": "1", "B": "2"})
    assert (other.command, other.processes) == (("python", "x.py"), 4)


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
        failurePolicy={"maxRestarts": {"infrastructure": 9}, "backoffSeconds": 0.5},
    )
    expected = Policy(minimum=3, join_policy="Never", settle=1, max_losses=9, backoff=0.5)
    assert job.spec.policy() == expected
    assert make_job().spec.policy() == Policy()


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
