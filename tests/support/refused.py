"""Jobs that are rejected, and the messages: of the API server, of the model, of both.

What stands in BOTH keeps the CRD's rules and the model's from drifting apart; the other two
tables give the reason of every difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.fields import MAX_FILES, MAX_GROUPS, MAX_LIST, MAX_TEXT

Object = dict[str, Any]

SPOT = {"name": "spot", "replicas": 2}
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["b"]}]}}
FROM = {"image": None, "command": None, "template": TEMPLATE}
GPU_LIMIT = {"limits": {"nvidia.com/gpu": "1"}}


def build_job(spec: Object, name: str = "digits") -> Object:
    """A whole job, with what is missing to a valid one; None removes that."""
    full = {"image": "my/trainer", "command": ["torchrun", "train.py"], "replicas": 2, **spec}
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {key: value for key, value in full.items() if value is not None},
    }


def group(**fields: Any) -> Object:
    """A spec with one extra group."""
    return {"extraWorkerGroups": [{**SPOT, **fields}]}


def files(name: str) -> Object:
    """A spec with two files, the first of this name."""
    return {"snapshot": {"files": [name, "a.pt"]}}


class Row(NamedTuple):
    """One bad job. `model`: its words, where they are not the same."""

    id: str
    job: Object
    says: str
    model: str = ""
    why: str = ""


TEXT = "with a letter or digit first and last, 63 at most"
NAME = (
    "is not a valid name of a job; begin with a lower-case letter, continue with lower-case letters, "
    "digits and '-', with a letter or digit last, 63 at most"
)
TOO_LONG = (
    "is too long: with '%s', the name of a group, it has more than 50 characters; shorten them to 50 "
    "together"
)
PATTERN = "in body should match '^[+]?([0-9]"
NO_QUANTITY = 'must be a quantity, such as 4, "0.5", 500m or 10Gi'
AT_LEAST_0 = "should be greater than or equal to 0"


def row(name: str, spec: Object, says: str, model: str = "", why: str = "") -> Row:
    return Row(name, build_job(spec), says, model, why)


NO_WORD = (
    "begins with an entry that is not one word; "
    "write each word as an entry of its own, as in [torchrun, train.py, --lr, '0.1']"
)
ALONE = (
    "starts one process in each worker, which does not find the others; use [torchrun, train.py], "
    "or launcher: python if the script finds the others itself"
)
FIXED_SIZE = (
    "has a flag that fixes the number of workers (--nnodes, --node-rank or --standalone); remove "
    "it: ddpjob gives torchrun the number, also after a change"
)
LONELY = (
    "spec.launcher: %is python, but a command runs torchrun, which would know of one worker only; "
    "omit launcher"
)
AT_ONE = (
    "spec.launcher: %is mpi, but a command runs torchrun, which would run at the first worker only; "
    "omit launcher, or write mpirun instead"
)
INSTEAD_OF_SMDDP = (
    "torch_distributed does the same with DDP over NCCL or gloo: take out the import of "
    "smdistributed and the backend smddp"
)
INSTEAD_OF_SMP = (
    "FSDP2 and tensor parallelism of torch do the same, with torch_distributed: "
    "see docs/bring-your-own.md"
)
SAME_ENTRY_POINT = "is never run: with sagemaker all groups have the same entry point; remove it"
FROM_THE_FIRST = (
    "is never run: mpirun starts the processes of all workers, from the first one; remove it"
)

BOTH = [
    row(
        "minimum_above_maximum",
        {"minReplicas": 5, "maxReplicas": 3},
        "spec.minReplicas: %is 5, above maxReplicas (3); lower it or raise maxReplicas",
    ),
    row(
        "below_minimum",
        {"minReplicas": 3},
        "spec.replicas: %is 2, below minReplicas (3); raise it or lower minReplicas",
    ),
    row(
        "above_maximum",
        {"maxReplicas": 1},
        "spec.replicas: %is 2, above maxReplicas (1); lower it or raise maxReplicas",
    ),
    row(
        "main_group_empty_below_minimum",
        {"replicas": 0, "minReplicas": 1, **group()},
        "spec.replicas: %is 0, below minReplicas (1); raise it or lower minReplicas",
    ),
    row(
        "group_minimum_above_maximum",
        group(minReplicas=3, maxReplicas=2),
        "spec.extraWorkerGroups[0].minReplicas: "
        "%is 3, above maxReplicas (2); lower it or raise maxReplicas",
    ),
    row(
        "group_below_minimum",
        group(minReplicas=3),
        "spec.extraWorkerGroups: %replicas of group 'spot' "
        "is 2, below minReplicas (3); raise it or lower minReplicas",
        "spec.extraWorkerGroups[0].replicas: "
        "is 2, below minReplicas (3); raise it or lower minReplicas",
    ),
    row(
        "group_above_maximum",
        group(maxReplicas=1),
        "spec.extraWorkerGroups[0].replicas: "
        "%is 2, above maxReplicas (1); lower it or raise maxReplicas",
    ),
    row(
        "no_command",
        {"command": None},
        "spec.command: %is missing; give what each worker runs, for example [torchrun, train.py]",
    ),
    row(
        "empty_command",
        {"command": []},
        "spec.command: %is missing; give what each worker runs, for example [torchrun, train.py]",
    ),
    row(
        "gpus_twice",
        {"gpusPerWorker": 1, "resources": GPU_LIMIT},
        "spec.gpusPerWorker: %is given, and a limit of nvidia.com/gpu, too; remove one of the two",
    ),
    row(
        "gpus_twice_under_another_name",
        {"gpuResource": "a/b", "gpusPerWorker": 1, "resources": {"limits": {"a/b": 1}}},
        "spec.gpusPerWorker: %is given, and a limit of a/b, too; remove one of the two",
    ),
    row(
        "gpus_of_a_group_twice",
        group(gpusPerWorker=1, resources=GPU_LIMIT),
        "spec.extraWorkerGroups: %gpusPerWorker of group 'spot' "
        "is given, and a limit of nvidia.com/gpu, too; remove one of the two",
        "spec.extraWorkerGroups[0].gpusPerWorker: "
        "is given, and a limit of nvidia.com/gpu, too; remove one of the two",
    ),
    row(
        "two_groups_of_one_name",
        {"extraWorkerGroups": [SPOT, SPOT]},
        'spec.extraWorkerGroups[1]: Duplicate value: {"name":"spot"}',
        "spec.extraWorkerGroups[1].name: 'spot' is another group's name already; "
        "choose another one",
    ),
    row(
        "group_called_worker",
        group(name="worker"),
        "spec.extraWorkerGroups[0].name: %'worker' is the main group's name; choose another one",
    ),
    row(
        "name_of_a_channel",
        {"command": ["train.py"], "sagemaker": {"channels": [{"name": "A_B", "volume": {}}]}},
        "spec.sagemaker.channels[0].name: %'A_B' is not a valid name; "
        "use lower-case letters, digits and '-', with a letter or digit first and last, 63 at most",
    ),
    row(
        "group_name",
        group(name="Spot_T4"),
        "spec.extraWorkerGroups[0].name: %'Spot_T4' is not a valid name; "
        f"use lower-case letters, digits and '-', {TEXT}",
    ),
    row(
        "long_group_name",
        group(name="x" * 64),
        "spec.extraWorkerGroups[0].name: %Too long: may not be more than 63 bytes",
        TEXT,
    ),
    row(
        "reserved_variable",
        {"env": [{"name": "DDPJOB_KEYS", "value": "x"}]},
        "spec.env[0].name: %'DDPJOB_KEYS' is set by ddpjob; choose a name that does not begin so",
    ),
    row(
        "reserved_variable_of_a_group",
        group(env=[{"name": "DDPJOB_RANK"}]),
        "spec.extraWorkerGroups[0].env[0].name: "
        "%'DDPJOB_RANK' is set by ddpjob; choose a name that does not begin so",
    ),
    row(
        "variable_name",
        {"env": [{"name": "A=B"}]},
        "spec.env[0].name: %'A=B' is not a valid name of an environment variable",
    ),
    row(
        "variable_name_of_a_group",
        group(env=[{"name": "9"}]),
        "spec.extraWorkerGroups[0].env[0].name: "
        "%'9' is not a valid name of an environment variable",
    ),
    row(
        "variable_twice",
        {"env": [{"name": "A"}, {"name": "A"}]},
        'spec.env[1]: Duplicate value: {"name":"A"}',
        "spec.env: 'A' is given more than once; keep one",
    ),
    row(
        "empty_file",
        files(""),
        "spec.snapshot.files[0] in body should be at least 1 chars long",
        "spec.snapshot.files[0]: must be some text, not ''",
    ),
    row(
        "file_twice",
        files("a.pt"),
        "spec.snapshot.files: %'a.pt' is given more than once; keep one",
    ),
    row(
        "file_above",
        files("ckpt/../b.pt"),
        "spec.snapshot.files[0]: %'ckpt/../b.pt' has '..'; write a path below the script's folder, without '..'",
    ),
    row(
        "whole_folder",
        files("./"),
        "spec.snapshot.files[0]: %'./' matches every file; name the files that the script saves",
    ),
    row(
        "nul_in_file",
        files("a\0b"),
        "spec.snapshot.files[0]: %has a character that does not print; remove that",
    ),
    row(
        "too_many_files",
        {"snapshot": {"files": [f"{i}.pt" for i in range(MAX_FILES + 1)]}},
        "spec.snapshot.files: Too many: 17: must have at most 16 items",
        "spec.snapshot.files: must have at most 16 entries; remove some",
    ),
    row(
        "number_as_value",
        {"env": [{"name": "A", "value": 1}]},
        'spec.env[0].value in body must be of type string: "integer"',
        'spec.env[0].value: must be text; put it in quotes: "1"',
    ),
    row(
        "no_processes",
        {"processesPerWorker": 0},
        "spec.processesPerWorker: %must be a whole number of at least 1, or auto (one for each GPU), not 0",
    ),
    row(
        "processes_in_words",
        {"processesPerWorker": "many"},
        "spec.processesPerWorker: %must be a whole number of at least 1, or auto (one for each GPU), not 'many'",
    ),
    row(
        "no_processes_of_a_group",
        group(processesPerWorker=-1),
        "spec.extraWorkerGroups[0].processesPerWorker: "
        "%must be a whole number of at least 1, or auto (one for each GPU), not -1",
    ),
    row(
        "negative_replicas",
        {"replicas": -1},
        f"spec.replicas in body {AT_LEAST_0}",
        "spec.replicas: must be at least 0, not -1",
    ),
    row(
        "negative_gpus",
        {"gpusPerWorker": -1},
        f"spec.gpusPerWorker in body {AT_LEAST_0}",
        "spec.gpusPerWorker: must be at least 0, not -1",
    ),
    row(
        "half_a_worker",
        {"replicas": 1.5},
        "spec.replicas in body must be of type integer",
        "spec.replicas: must be a whole number, not 1.5",
    ),
    row(
        "too_many_workers",
        {"replicas": 20_000},
        "spec.replicas in body should be less than or equal to 10000",
        "spec.replicas: must be at most 10000, not 20000",
    ),
    row(
        "too_many_groups",
        {"extraWorkerGroups": [{"name": f"g{i}", "replicas": 1} for i in range(MAX_GROUPS + 1)]},
        "spec.extraWorkerGroups: Too many: 17: must have at most 16 items",
        "spec.extraWorkerGroups: must have at most 16 entries; remove some",
    ),
    row(
        "too_many_variables",
        {"env": [{"name": f"A{i}"} for i in range(MAX_LIST + 1)]},
        "spec.env: Too many: 1001: must have at most 1000 items",
        "spec.env: must have at most 1000 entries; remove some",
    ),
    row(
        "long_image",
        {"image": "x" * (MAX_TEXT + 1)},
        "spec.image: Too long: may not be more than 1024 bytes",
        "spec.image: must have at most 1024 characters; shorten it",
    ),
    row(
        "empty_image",
        {"image": ""},
        "spec.image in body should be at least 1 chars long",
        "spec.image: must be some text, not ''",
    ),
    row(
        "policy_word",
        {"elastic": {"joinPolicy": "auto"}},
        'spec.elastic.joinPolicy: Unsupported value: "auto": '
        'supported values: "Auto", "Immediate", "Never"',
        "spec.elastic.joinPolicy: must be Auto, Immediate or Never, not 'auto'",
    ),
    row(
        "impatient_orphans",
        {"elastic": {"orphanSeconds": 1}},
        "spec.elastic.orphanSeconds in body should be greater than or equal to 5",
        "spec.elastic.orphanSeconds: must be at least 5, not 1",
    ),
    row(
        "impatient_with_the_stuck",
        {"elastic": {"stuckSeconds": 1}},
        "spec.elastic.stuckSeconds in body should be greater than or equal to 5",
        "spec.elastic.stuckSeconds: must be at least 5, not 1",
    ),
    row(
        "nervous_heartbeat",
        {"elastic": {"heartbeatSeconds": 1.5}},
        "spec.elastic.heartbeatSeconds in body should be greater than or equal to 2",
        "spec.elastic.heartbeatSeconds: must be at least 2, not 1.5",
    ),
    row(
        "warm_start_in_words",
        {"elastic": {"warmStart": "off"}},
        'spec.elastic.warmStart in body must be of type boolean: "string"',
        "spec.elastic.warmStart: must be true or false, not 'off'",
    ),
    row(
        "list_for_mapping",
        {"network": []},
        'spec.network in body must be of type object: "array"',
        "spec.network: must be a mapping, not a list",
    ),
    row(
        "text_for_command",
        {"command": "torchrun train.py"},
        'spec.command in body must be of type array: "string"',
        "spec.command: must be a list: [torchrun, train.py]",
    ),
    row(
        "unknown_field",
        {"zzz": 1},
        'strict decoding error: unknown field "spec.zzz"',
        "spec.zzz: unknown field 'zzz'; remove it",
    ),
    row(
        "unknown_field_of_a_group",
        group(minReplica=1),
        'strict decoding error: unknown field "spec.extraWorkerGroups[0].minReplica"',
        "unknown field 'minReplica'; did you mean 'minReplicas'?",
    ),
    row(
        "no_replicas",
        {"replicas": None},
        "spec.replicas: Required value",
        "spec.replicas: is missing; add it: desired number of workers of the group",
    ),
    Row("digit_first", build_job({}, name="9lives"), f"metadata.name: %'9lives' {NAME}"),
    Row("long_job_name", build_job({}, name="x" * 45), f"metadata.name: %{TOO_LONG % 'worker'}"),
    Row(
        "long_names_together",
        build_job(group(name="y" * 20), name="x" * 31),
        f"metadata.name: %{TOO_LONG % ('y' * 20)}",
    ),
]

BOTH += [
    *(
        row(
            f"uri_{name}",
            {"snapshot": {"uri": uri}},
            f"spec.snapshot.uri: %'{uri}' is not a bucket with a prefix; write one such as "
            "s3://bucket/jobs/digits (s3, gs or az)",
        )
        for name, uri in (
            ("of_a_folder", "/data/snapshots"),
            ("of_another_kind", "hdfs://bucket/x"),
            ("with_a_secret", "s3://key:secret@bucket/jobs"),
            ("with_an_empty_part", "s3://bucket//jobs"),
        )
    ),
    row(
        "uri_and_storage",
        {"snapshot": {"uri": "s3://bucket/jobs", "storage": {"emptyDir": {}}}},
        "spec.snapshot.uri: %is given, and snapshot.storage, too; remove one of the two",
    ),
    *(
        row(f"torchrun_below_{launcher}_{name}", {"launcher": launcher, "command": words}, says)
        for launcher, says in (("python", LONELY), ("mpi", AT_ONE))
        for name, words in (
            ("by_name", ["torchrun", "train.py"]),
            ("by_path", ["/opt/bin/torchrun"]),
            ("as_module", ["python", "-m", "torch.distributed.run", "train.py"]),
        )
    ),
    *(
        row(f"torchrun_below_python_{name}", {"launcher": "python", **spec}, LONELY)
        for name, spec in (
            ("in_a_group", {"command": ["python"], **group(command=["torchrun"])}),
            ("in_args", {"command": ["python"], "args": ["-m", "torch.distributed.run"]}),
        )
    ),
    *(
        row(
            f"sagemakers_own_{name}",
            {"command": ["train.py"], "sagemaker": {"distribution": name}},
            f"spec.sagemaker.distribution: %is {name}, SageMaker's own library, which runs only "
            f"there; {instead}",
        )
        for name, instead in (
            ("smddp", INSTEAD_OF_SMDDP),
            ("smp", INSTEAD_OF_SMP),
        )
    ),
    row(
        "sagemaker_with_torchrun",
        {"command": ["torchrun", "train.py"], "sagemaker": {}},
        "spec.command: %must begin with the entry point, such as train.py; "
        "sagemaker.distribution chooses the launcher",
    ),
    row(
        "sagemaker_and_another_launcher",
        {"command": ["train.py"], "launcher": "mpi", "sagemaker": {"distribution": "pytorchddp"}},
        "spec.launcher: %is set by sagemaker.distribution; remove it",
    ),
    row(
        "sagemaker_and_no_command_of_its_own",
        {**FROM, "sagemaker": {}},
        "spec.command: %is missing; give what each worker runs, for example [torchrun, train.py]",
    ),
    row(
        "rule_about_nothing",
        {"failurePolicy": {"rules": [{"action": "Ignore"}]}},
        "spec.failurePolicy.rules[0].onExitCodes: %and onReasons are alternatives; give exactly one"
        " of the two in each rule",
    ),
    row(
        "window_of_a_large_budget",
        {"failurePolicy": {"windowSeconds": 60, "maxRestarts": {"application": 101}}},
        "spec.failurePolicy.maxRestarts.application: %is 101, but with windowSeconds it is at most"
        " 100; lower it or remove windowSeconds",
    ),
    *(
        row(
            f"not_yet_{field}",
            {"scheduling": {field: value}},
            f"spec.scheduling.{field}: %is not supported by this version; remove it",
        )
        for field, value in {"topologyKey": "zone", "gang": {}}.items()
    ),
    *(
        row(
            f"{field}_of_a_group_below_{name}",
            {**spec, **group(**{field: ["x"]})},
            f"spec.extraWorkerGroups: %{field} of group 'spot' {never}",
            f"spec.extraWorkerGroups[0].{field}: {never}",
        )
        for field in ("command", "args")
        for name, spec, never in (
            ("mpi", {"launcher": "mpi", "command": ["mpirun"]}, FROM_THE_FIRST),
            ("sagemaker", {"command": ["train.py"], "sagemaker": {}}, SAME_ENTRY_POINT),
        )
    ),
]


def command_rows(name: str, says: str, *specs: Object) -> Iterator[Row]:
    """Commands that break one rule: of the main group, and the first one of an extra group."""
    for i, spec in enumerate(specs):
        yield row(f"{name}_{i}", spec, f"spec.command: %{says}")
    words = specs[0]["command"]
    yield row(
        f"{name}_in_a_group",
        group(command=words),
        f"spec.extraWorkerGroups: %command of group 'spot' {says}",
        f"spec.extraWorkerGroups[0].command: {says}",
    )


BOTH += [
    *command_rows("command_line", NO_WORD, {"command": ["torchrun train.py"]}),
    *command_rows("lines", NO_WORD, {"command": ["torchrun\ntrain.py"]}),
    *command_rows("empty_word", NO_WORD, {"command": ["", "train.py"]}),
    *command_rows(
        "script_alone",
        ALONE,
        {"command": ["python", "train.py"]},
        {"command": ["/usr/bin/python3.11", "-u", "-B", "train.py", "--nnodes", "2"]},
        {"command": ["python3"], "args": ["train.py", "-m", "bert"]},
        {"command": ["python3", "train.py"], "launcher": "torchrun"},
        {"command": ["python", "train.py"], "replicas": 1, "maxReplicas": 2},
        {"command": ["python", "train.py"], "replicas": 1, "processesPerWorker": 4},
        {"command": ["python", "train.py"], "replicas": 1, "gpusPerWorker": 8},
        {"command": ["python", "train.py"], "replicas": 1, **group(replicas=1, command=["a"])},
    ),
    *command_rows(
        "fixed_size",
        FIXED_SIZE,
        {"command": ["torchrun", "--nnodes", "2", "train.py"]},
        {"command": ["/opt/bin/torchrun", "--nproc-per-node", "2", "--nnodes=1:1", "train.py"]},
        {"command": ["torchrun"], "args": ["--rdzv_endpoint", "h:1", "--node_rank=0", "train.py"]},
        {"command": ["python", "-m", "torch.distributed.run", "--standalone", "train.py"]},
    ),
    row(
        "arguments_of_a_group_alone",
        {
            "command": ["python"],
            "args": ["-c", "x"],
            **group(args=["train.py"]),
        },
        f"spec.extraWorkerGroups: %command of group 'spot' {ALONE}",
        f"spec.extraWorkerGroups[0].command: {ALONE}",
    ),
    row(
        "image_with_a_space",
        {"image": "my/trainer :1"},
        "spec.image: %has a space or a line break; remove it",
    ),
    row(
        "image_of_a_group_with_a_space",
        group(image="my/trainer "),
        "spec.extraWorkerGroups[0].image: %has a space or a line break; remove it",
    ),
    *(
        row(
            f"quantity_{name}",
            {"resources": {"requests": {"memory": value}}},
            says,
            f"spec.resources.requests.memory: {NO_QUANTITY}, not {shown}",
        )
        for name, value, shown, says in (
            ("of_a_wrong_unit", "10Gigs", "'10Gigs'", f"spec.resources.requests.memory {PATTERN}"),
            ("of_two_dots", "1.5.2", "'1.5.2'", f"spec.resources.requests.memory {PATTERN}"),
            ("with_a_space", "10 Gi", "'10 Gi'", f"spec.resources.requests.memory {PATTERN}"),
            ("below_zero", -1, "-1", f"spec.resources.requests.memory in body {AT_LEAST_0}"),
            ("below_zero_as_text", "-1Gi", "'-1Gi'", f"spec.resources.requests.memory {PATTERN}"),
            ("of_no_text", "", "''", f"spec.resources.requests.memory {PATTERN}"),
            (
                "of_truth",
                True,
                "true",
                "spec.resources.requests.memory in body must be of type integer,string",
            ),
        )
    ),
    row(
        "cores_of_a_group",
        group(resources={"limits": {"cpu": "4x"}}),
        f"spec.extraWorkerGroups[0].resources.limits.cpu {PATTERN}",
        f"spec.extraWorkerGroups[0].resources.limits.cpu: {NO_QUANTITY}, not '4x'",
    ),
    *(
        row(
            f"resource_{name}",
            {"resources": {"limits": {name: 1}}},
            f"spec.resources.limits: %'{name}' is not a resource of Kubernetes; use cpu, memory or "
            "ephemeral-storage, or a name with its maker, as in nvidia.com/gpu",
        )
        for name in ("gpu", "Memory")
    ),
    *(
        row(
            f"resource_of_the_rendezvous_pod_{part}",
            {"rendezvous": {"resources": {part: {"mem": "1Gi"}}}},
            f"spec.rendezvous.resources.{part}: %'mem' is not a resource of Kubernetes; use cpu, memory "
            "or ephemeral-storage, or a name with its maker, as in nvidia.com/gpu",
        )
        for part in ("limits", "requests")
    ),
    row(
        "resource_of_requests",
        {"resources": {"requests": {"mem": "1Gi"}}},
        "spec.resources.requests: %'mem' is not a resource of Kubernetes; use cpu, memory or "
        "ephemeral-storage, or a name with its maker, as in nvidia.com/gpu",
    ),
    *(
        row(
            f"resource_of_a_group_{part}",
            group(resources={part: {"CPU": 1}}),
            f"spec.extraWorkerGroups[0].resources.{part}: %'CPU' is not a resource of Kubernetes; use "
            "cpu, memory or ephemeral-storage, or a name with its maker, as in nvidia.com/gpu",
        )
        for part in ("limits", "requests")
    ),
]

ONLY_THE_API_SERVER = [
    row(
        "no_image",
        {"image": None},
        "spec.image: %is missing; give the image that the workers run",
        why="the local back end needs none",
    ),
    row(
        "half_a_cpu",
        {"resources": {"limits": {"cpu": 0.5}}},
        "spec.resources.limits.cpu in body must be of type integer,string",
        why="a schema of integers or texts, as Kubernetes has it, cannot take it without quotes",
    ),
]

ONLY_THE_MODEL = [
    *(
        row(
            f"gpus_{name}",
            {"resources": {"limits": {"cpu": "0.5", "nvidia.com/gpu": amount}}},
            f"spec.resources.limits: must have a whole number of nvidia.com/gpu, not {amount}",
            why="CEL does not know how long the text of a quantity may be",
        )
        for name, amount in (("and_a_half", "1.5"), ("in_thousandths", "500m"), ("tiny", "1e-3"))
    ),
    row(
        "standalone_in_a_shell",
        {"command": ["sh", "-c", "exec torchrun --standalone train.py"]},
        f"spec.command: {FIXED_SIZE}",
        why="CEL does not read the command line of a shell",
    ),
    *(
        row(
            f"{name}_in_a_template",
            {**FROM, "template": {"spec": {"containers": [{"image": "a", "command": command}]}}},
            f"spec.command: {says}",
            why="a template is opaque to CEL",
        )
        for name, command, says in (
            ("command_line", ["torchrun train.py"], NO_WORD),
            ("script_alone", ["python", "train.py"], ALONE),
            ("fixed_size", ["torchrun", "--nnodes=2", "train.py"], FIXED_SIZE),
        )
    ),
    row(
        "template_without_a_command",
        {**FROM, "template": {"spec": {}}},
        "spec.template: has no command in the container that trains",
        why="a template is opaque to CEL",
    ),
    row(
        "template_with_a_field_of_the_pod",
        {"template": {"nodeSelector": {"gpu": "t4"}}},
        "spec.template: has 'nodeSelector', which is not a field of a pod template; "
        "move it into template.spec",
        why="a template is opaque to CEL",
    ),
    row(
        "template_with_a_directive_that_is_not_supported",
        group(template={"spec": {"$setElementOrder/volumes": []}}),
        "spec.extraWorkerGroups[0].template: has '$setElementOrder/volumes', which is not supported",
        why="a template is opaque to CEL",
    ),
    row(
        "sagemaker_and_a_command_in_the_template",
        {"command": ["train.py"], "template": TEMPLATE, "sagemaker": {}},
        "spec.template: has a command or args in the container that trains, but sagemaker",
        why="a template is opaque to CEL",
    ),
    row(
        "gpus_and_a_limit_in_the_template",
        {
            **FROM,
            "gpusPerWorker": 1,
            "template": {"spec": {"containers": [{"command": ["a"], "resources": GPU_LIMIT}]}},
        },
        "spec.gpusPerWorker: is given, and a limit of nvidia.com/gpu, too",
        why="a template is opaque to CEL",
    ),
    Row(
        "empty_section",
        {**build_job({}), "spec": {**build_job({})["spec"], "elastic": None}},
        "spec.elastic: is empty; give it a value or remove it",
        why="the API server drops nulls, which is harmless; in a file they are slips",
    ),
]


def accepted_by_model(job: Object) -> DDPJob:
    """The job as the model has it; raises where it refuses."""
    return DDPJob.model_validate({k: v for k, v in job.items() if k != "apiVersion"}, by_name=False)


def has(text: str, words: str) -> bool:
    """Return whether the words are in one line; `%` stands for any text of the API server."""
    return re.search(".*".join(map(re.escape, words.split("%"))), text) is not None


def ids(rows: list[Row]) -> pytest.MarkDecorator:
    """A test for each row, by its id."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in rows])
