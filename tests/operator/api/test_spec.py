from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.spec import DDPJob

MINIMAL = {"replicas": 2, "command": ["torchrun", "train.py"]}
SPOT = {"name": "spot", "replicas": 2}
SIXTY = "x" * 60


def complaints(spec: dict[str, Any], name: str = "digits") -> list[str]:
    data = {"metadata": {"name": name}, "spec": spec}
    with pytest.raises(ValidationError) as caught:
        DDPJob.model_validate(data, by_name=False)
    return [str(problem) for problem in explain_errors(caught.value)]


# --- what is refused -------------------------------------------------------------------------------

NO_BUCKET = (
    "is not a bucket with a prefix; write one such as s3://bucket/jobs/digits (s3, gs or az)"
)
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
        "main_group_below_its_minimum",
        {"replicas": 0, "minReplicas": 1, "extraWorkerGroups": [SPOT]},
        "spec.replicas: is 0, below minReplicas (1); raise it or lower minReplicas",
    ),
    (
        "paused_above_maximum",
        {"suspend": True, "maxReplicas": 1},
        "spec.replicas: is 2, above maxReplicas (1); lower it or raise maxReplicas",
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
        "spec.processesPerWorker: must be a whole number of at least 1, or auto (one for each GPU), not 0",
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
        {"env": [{"name": "DDPJOB_KEYS", "value": "x"}]},
        "spec.env[0].name: 'DDPJOB_KEYS' is set by ddpjob; choose a name that does not begin so",
    ),
    (
        "variable_name",
        {"env": [{"name": "A=B"}]},
        "spec.env[0].name: 'A=B' is not a valid name of an environment variable",
    ),
    (
        "variable_twice",
        {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        "spec.env: 'A' is given more than once; keep one",
    ),
    (
        "too_many_workers",
        {"replicas": 20_000},
        "spec.replicas: must be at most 10000, not 20000",
    ),
    (
        "too_many_groups",
        {"extraWorkerGroups": [{"name": f"g{i}", "replicas": 1} for i in range(17)]},
        "spec.extraWorkerGroups: must have at most 16 entries; remove some",
    ),
    (
        "long_image",
        {"image": "x" * 2000},
        "spec.image: must have at most 1024 characters; shorten it",
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
    (
        "mapping_for_list",
        {"env": {"LR": 0.1, "A": "b"}},
        'spec.env: must be a list: [{name: LR, value: "0.1"}, {name: A, value: "b"}]',
    ),
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
    *(
        (f"file_{name}", {"snapshot": {"files": ["a.pt", path]}}, f"spec.snapshot.files{text}")
        for name, path, text in (
            ("empty", "", "[1]: must be some text, not ''"),
            ("twice", "a.pt", ": 'a.pt' is given more than once; keep one"),
            (
                "above",
                "../b.pt",
                "[1]: '../b.pt' has '..'; write a path below the script's folder, without '..'",
            ),
            (
                "above_within",
                "/x/../b",
                "[1]: '/x/../b' has '..'; write a path below the script's folder, without '..'",
            ),
            (
                "above_alone",
                "..",
                "[1]: '..' has '..'; write a path below the script's folder, without '..'",
            ),
            (
                "all",
                "./",
                "[1]: './' matches every file; name the files that the script saves",
            ),
            (
                "nul",
                "a\0b",
                "[1]: has a character that does not print; remove that",
            ),
            (
                "new_line",
                "a\n",
                "[1]: has a character that does not print; remove that",
            ),
        )
    ),
    *(
        (
            f"uri_{name}",
            {"snapshot": {"uri": uri}},
            f"spec.snapshot.uri: '{uri}' {NO_BUCKET}",
        )
        for name, uri in {
            "of_a_folder": "/data/snapshots",
            "of_another_kind": "hdfs://bucket/x",
            "without_a_bucket": "s3:///jobs",
            "with_a_secret": "s3://key:secret@bucket/jobs",
            "with_an_empty_part": "s3://bucket//jobs",
            "with_a_query": "s3://bucket/jobs?region=x",
        }.items()
    ),
    (
        "uri_and_storage",
        {"snapshot": {"uri": "s3://bucket/jobs", "storage": {"emptyDir": {}}}},
        "spec.snapshot.uri: is given, and snapshot.storage, too; remove one of the two",
    ),
]


@pytest.mark.parametrize(
    ("spec", "message"), [pytest.param(spec, text, id=name) for name, spec, text in REFUSED]
)
def test_refuses_and_says_what_to_do(spec: dict[str, Any], message: str) -> None:
    assert complaints({**MINIMAL, **spec}) == [message]


NOT_SUPPORTED = "is not supported by this version; remove it"
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"scheduling": {"topologyKey": "zone"}}, f"spec.scheduling.topologyKey: {NOT_SUPPORTED}"),
    ({"scheduling": {"gang": {}}}, f"spec.scheduling.gang: {NOT_SUPPORTED}"),
]


@pytest.mark.parametrize(
    ("spec", "message"),
    [pytest.param(spec, text, id=text.partition(":")[0]) for spec, text in UNSUPPORTED],
)
def test_refuses_what_nothing_acts_on(spec: dict[str, Any], message: str) -> None:
    assert complaints({**MINIMAL, **spec}) == [message]


BARE: dict[str, Any] = {"spec": {"containers": [{"command": ["torchrun", "train.py"]}]}}
LIMIT = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
SIDE = {"name": "side", "command": ["log"]}
LIMITED = "is given, and a limit of nvidia.com/gpu, too; remove one of the two"
NO_COMMAND = (
    "has no command in the container that trains; give spec.command, or the container's command"
)


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    """A template of these containers."""
    return {"spec": {"containers": list(containers)}}


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        pytest.param(
            {"template": pod({"command": ["x"], **LIMIT}), "gpusPerWorker": 4, "command": None},
            [f"spec.gpusPerWorker: {LIMITED}"],
            id="gpus_and_limit_in_template",
        ),
        pytest.param(
            {"resources": {"limits": {"nvidia.com/gpu": 1}}, "gpusPerWorker": 1},
            [f"spec.gpusPerWorker: {LIMITED}"],
            id="gpus_and_limit_in_resources",
        ),
        pytest.param(
            {
                "resources": {"limits": {"amd.com/gpu": 1}},
                "gpuResource": "amd.com/gpu",
                "gpusPerWorker": 1,
            },
            [f"spec.gpusPerWorker: {LIMITED.replace('nvidia', 'amd')}"],
            id="gpus_of_another_maker",
        ),
    ],
)
def test_refuses_two_sources_of_one_thing(spec: dict[str, Any], messages: list[str]) -> None:
    assert complaints({**MINIMAL, **spec}) == messages


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({}, id="empty"),
        pytest.param({"spec": [1]}, id="list_for_mapping"),
        pytest.param({"spec": {"containers": {"command": ["x"]}}}, id="mapping_for_list"),
        pytest.param({"spec": {"containers": ["x", None]}}, id="no_container"),
        pytest.param(pod({"image": "i"}), id="image_alone"),
        pytest.param(pod({"command": "torchrun train.py"}), id="text_for_list"),
        pytest.param(pod(SIDE, {"name": "trainer"}), id="only_a_sidecar_has_one"),
    ],
)
def test_refuses_templates_without_a_command(template: dict[str, Any]) -> None:
    main = {**MINIMAL, "command": None, "template": template}
    assert complaints(main) == [f"spec.template: {NO_COMMAND}"]


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"spec": [1]}, id="list_for_mapping"),
        pytest.param({"spec": {"containers": {"command": ["x"]}}}, id="mapping_for_list"),
        pytest.param(pod({"name": "trainer", "command": None, "args": None}), id="null_deletes"),
        pytest.param(pod({"name": "trainer", "$patch": "delete"}), id="container_deleted"),
    ],
)
def test_refuses_templates_that_take_the_command_away(template: dict[str, Any]) -> None:
    assert complaints({**MINIMAL, "template": template}) == [f"spec.template: {NO_COMMAND}"]
    extra = {**MINIMAL, "extraWorkerGroups": [{**SPOT, "template": template}]}
    assert complaints(extra) == [f"spec.extraWorkerGroups[0].template: {NO_COMMAND}"]


def test_tells_all_problems_at_once() -> None:
    spec = {
        **MINIMAL,
        "minReplicas": 3,
        "scheduling": {"gang": {}},
        "extraWorkerGroups": [SPOT, SPOT],
    }
    assert len(complaints(spec)) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(
            "My_Job",
            "metadata.name: 'My_Job' is not a valid name of a job; begin with a lower-case letter, "
            "continue with lower-case letters, digits and '-', with a letter or digit last, 63 at most",
            id="characters",
        ),
        pytest.param(
            "9lives",
            "metadata.name: '9lives' is not a valid name of a job; begin with a lower-case letter, "
            "continue with lower-case letters, digits and '-', with a letter or digit last, 63 at most",
            id="digit_first",
        ),
        pytest.param(
            SIXTY,
            "metadata.name: is too long: with 'worker', the name of a group, it has more than 50 "
            "characters; shorten them to 50 together",
            id="length",
        ),
    ],
)
def test_refuses_names_that_children_could_not_have(name: str, message: str) -> None:
    assert complaints(MINIMAL, name) == [message]
