"""Wrong manifests as people write them, with the errors of `validate` and of the API server.

No manifest is accepted by both. Where the API server accepts one, `why` gives the reason.
"""

from __future__ import annotations

from typing import NamedTuple

STRICT = 'strict decoding error: unknown field "%s"'
ALONE = (
    "starts one process in each worker, which does not find the others; use [torchrun, train.py]"
)
FIXED = (
    "has a flag that fixes the number of workers (--nnodes, --node-rank or --standalone); remove"
)
NO_WORD = "begins with an entry that is not one word; write each word as an entry of its own"
QUANTITY = 'must be a quantity, such as 4, "0.5", 500m or 10Gi, not'
NO_MATCH = "in body should match '^[+]?([0-9]"
UNREADABLE = "yaml: line"
OPAQUE = "a template is opaque to the API server; the job is stalled with this message"


class Wrong(NamedTuple):
    """A wrong manifest. `server` is empty if the API server accepts it."""

    id: str
    text: str
    says: str
    server: str
    why: str = ""


def job(
    more: str = "",
    *,
    command: str = "[torchrun, train.py]",
    replicas: str = "2",
    metadata: str = "{name: mine}",
    kind: str = "DDPJob",
    version: str = "ddpjob.io/v1alpha1",
) -> str:
    """A manifest; `more` is further lines of the spec."""
    lines = [
        f"apiVersion: {version}",
        f"kind: {kind}",
        f"metadata: {metadata}",
        "spec:",
        "  image: my/trainer",
        f"  command: {command}",
        f"  replicas: {replicas}",
        *(f"  {line}" for line in more.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def template(container: str) -> str:
    """A manifest whose pods come from a template with this container."""
    lines = "  image: my/trainer\n  command: [torchrun, train.py]\n"
    spec = f"  template: {{spec: {{containers: [{container}]}}}}\n"
    return job().replace(lines, spec)


COMMANDS = [
    Wrong(
        "script_alone", job(command="[python, train.py]"), f"line 6: spec.command: {ALONE}", ALONE
    ),
    Wrong("script_alone_with_flags", job(command="[python3.11, -u, train.py]"), ALONE, ALONE),
    Wrong("script_in_args", job("args: [train.py, --lr, '1']", command="[python]"), ALONE, ALONE),
    Wrong(
        "script_alone_on_many_gpus",
        job("gpusPerWorker: 8", command="[python, train.py]", replicas="1"),
        ALONE,
        ALONE,
    ),
    Wrong(
        "script_alone_that_may_grow",
        job("maxReplicas: 8", command="[python, train.py]", replicas="1"),
        ALONE,
        ALONE,
    ),
    Wrong("one_entry", job(command="['torchrun train.py --lr 0.1']"), NO_WORD, NO_WORD),
    Wrong("one_entry_over_lines", job(command='["torchrun\\ntrain.py"]'), NO_WORD, NO_WORD),
    Wrong(
        "text",
        job(command="torchrun train.py"),
        "spec.command: must be a list: [torchrun, train.py]",
        'spec.command in body must be of type array: "string"',
    ),
    Wrong("nodes_pinned", job(command="[torchrun, --nnodes, '2', train.py]"), FIXED, FIXED),
    Wrong("range_pinned", job(command="[torchrun, '--nnodes=1:4', train.py]"), FIXED, FIXED),
    Wrong("standalone", job(command="[torchrun, --standalone, train.py]"), FIXED, FIXED),
    Wrong(
        "rank_pinned_as_module",
        job(command="[python, -m, torch.distributed.run, --node_rank=0, train.py]"),
        FIXED,
        FIXED,
    ),
    Wrong(
        "script_alone_in_a_group",
        job("extraWorkerGroups:\n- {name: spot, replicas: 1, command: [python, train.py]}"),
        f"line 9: spec.extraWorkerGroups[0].command: {ALONE}",
        f"command of group 'spot' {ALONE}",
    ),
    Wrong(
        "number_as_argument",
        job("args: [--epochs, 3]"),
        'spec.args[1]: must be text; put it in quotes: "3"',
        'spec.args[1] in body must be of type string: "integer"',
    ),
    Wrong(
        "launcher_of_another_tool",
        job("launcher: accelerate"),
        "spec.launcher: must be torchrun, python or mpi, not 'accelerate'",
        'spec.launcher: Unsupported value: "accelerate"',
    ),
    Wrong(
        "torchrun_below_python",
        job("launcher: python"),
        "spec.launcher: is python, but a command runs torchrun",
        "is python, but a command runs torchrun",
    ),
    Wrong(
        "script_alone_in_a_template", template("{command: [python, train.py]}"), ALONE, "", OPAQUE
    ),
    Wrong(
        "template_without_a_command",
        template("{name: trainer, image: a}"),
        "has no command in the container that trains",
        "",
        OPAQUE,
    ),
]

METADATA = [
    Wrong(
        "labels_misspelt",
        job(metadata="{name: mine, lables: {team: a}}"),
        "line 3: metadata.lables: unknown field 'lables'; did you mean 'labels'?",
        STRICT % "metadata.lables",
    ),
    Wrong(
        "name_misspelt",
        job(metadata="{nmae: mine}"),
        "metadata.nmae: unknown field 'nmae'; did you mean 'name'?",
        STRICT % "metadata.nmae",
    ),
    Wrong(
        "label_as_number",
        job(metadata="{name: mine, labels: {team: 5}}"),
        'metadata.labels.team: must be text; put it in quotes: "5"',
        "cannot unmarshal number into Go struct field ObjectMeta",
    ),
    Wrong(
        "label_with_a_space",
        job(metadata="{name: mine, labels: {team: my team}}"),
        "metadata.labels.team: 'my team' is not a valid value of a label; use letters",
        'metadata.labels: Invalid value: "my team"',
    ),
    Wrong(
        "label_key",
        job(metadata="{name: mine, labels: {my team: a}}"),
        "metadata.labels.my team: 'my team' is not a valid key; use letters",
        'metadata.labels: Invalid value: "my team"',
    ),
    Wrong(
        "annotation_key",
        job(metadata="{name: mine, annotations: {a/b/c: d}}"),
        "metadata.annotations.a/b/c: 'a/b/c' is not a valid key",
        'metadata.annotations: Invalid value: "a/b/c"',
    ),
    Wrong(
        "annotation_as_truth",
        job(metadata="{name: mine, annotations: {wanted: true}}"),
        'metadata.annotations.wanted: must be text; put it in quotes: "true"',
        "cannot unmarshal bool into Go struct field ObjectMeta",
    ),
    Wrong(
        "labels_as_list",
        job(metadata="{name: mine, labels: [a]}"),
        "metadata.labels: must be a mapping, not a list",
        "cannot unmarshal array into Go struct field ObjectMeta",
    ),
    Wrong(
        "capitals_in_name",
        job(metadata="{name: My_Job}"),
        "metadata.name: 'My_Job' is not a valid name of a job",
        'metadata.name: Invalid value: "My_Job"',
    ),
    Wrong(
        "digit_first_in_name",
        job(metadata="{name: 9lives}"),
        "metadata.name: '9lives' is not a valid name of a job",
        "'9lives' is not a valid name of a job",
    ),
    Wrong(
        "number_as_name",
        job(metadata="{name: 7}"),
        'metadata.name: must be text; put it in quotes: "7"',
        "cannot unmarshal number into Go struct field ObjectMeta",
    ),
    Wrong(
        "no_name",
        job(metadata="{namespace: default}"),
        "metadata.name: is missing; add it: name of the job, unique in its namespace",
        "name or generateName is required",
    ),
    Wrong(
        "namespace_in_capitals",
        job(metadata="{name: mine, namespace: Team_A}"),
        "metadata.namespace: 'Team_A' is not a valid name; use lower-case letters",
        "the namespace of the provided object does not match the namespace sent on the request",
    ),
    Wrong(
        "replicas_in_metadata",
        job(metadata="{name: mine, replicas: 2}"),
        "metadata.replicas: unknown field 'replicas' here; it belongs to spec",
        STRICT % "metadata.replicas",
    ),
]

ALTERNATIVES = "and onReasons are alternatives; give exactly one of the two in each rule"
RESTARTS = "use spec.failurePolicy.maxRestarts.application"
FIELDS_MISSPELT = [
    (field, value, f"line 8: spec.{field}: unknown field '{field}'{remedy}")
    for field, value, remedy in (
        ("maxRestarts", "3", f" here; {RESTARTS}"),
        ("max_restarts", "3", f" here; {RESTARTS}"),
        ("maxRestart", "3", f" here; {RESTARTS}"),
        ("everySteps", "10", " here; it belongs to spec.snapshot"),
        ("every_steps", "10", " here; it belongs to spec.snapshot as 'everySteps'"),
        ("gpus", "2", "; did you mean 'gpusPerWorker'?"),
        ("nnodes", "2", "; did you mean 'replicas'?"),
        ("nproc_per_node", "2", "; did you mean 'processesPerWorker'?"),
        ("min_replicas", "1", "; did you mean 'minReplicas'?"),
        ("restartPolicy", "OnFailure", "; use spec.failurePolicy.maxRestarts.application"),
        ("backoffLimit", "3", "; use spec.failurePolicy.maxRestarts.application"),
        ("ttl", "60", "; did you mean 'ttlSecondsAfterFinished'?"),
        ("memory", "10Gi", "; use spec.resources.limits"),
        ("suspended", "true", "; did you mean 'suspend'?"),
        ("nodeSelector", "{gpu: t4}", " here; it belongs to spec.template.spec"),
        ("tolerations", "[]", " here; it belongs to spec.template.spec"),
        ("node_selector", "{a: b}", " here; it belongs to spec.template.spec as 'nodeSelector'"),
        ("nodeSelectr", "{a: b}", " here; it belongs to spec.template.spec as 'nodeSelector'"),
        ("serviceAccount", "a", "; use spec.template.spec.serviceAccountName"),
        ("volumeMounts", "[]", " here; it belongs to spec.template.spec.containers, into the"),
        ("zzz", "1", "; remove it"),
    )
]

FIELDS = [
    *(
        Wrong(f"field_{field}", job(f"{field}: {value}"), says, STRICT % f"spec.{field}")
        for field, value, says in FIELDS_MISSPELT
    ),
    Wrong(
        "restarts_as_mapping",
        job("maxRestarts: {application: 3}"),
        "spec.maxRestarts: unknown field 'maxRestarts' here; it belongs to spec.failurePolicy",
        STRICT % "spec.maxRestarts",
    ),
    Wrong(
        "restarts_as_number",
        job("failurePolicy: {maxRestarts: 3}"),
        "spec.failurePolicy.maxRestarts: must be a mapping: {application: 3}",
        'spec.failurePolicy.maxRestarts in body must be of type object: "integer"',
    ),
    Wrong(
        "rule_about_two_things",
        job(
            "failurePolicy:\n  rules:\n  - {action: Ignore, onReasons: [Evicted], "
            "onExitCodes: {operator: In, values: [3]}}"
        ),
        f"spec.failurePolicy.rules[0].onExitCodes: {ALTERNATIVES}",
        ALTERNATIVES,
    ),
    Wrong(
        "rule_about_nothing",
        job("failurePolicy: {rules: [{action: FailJob}]}"),
        f"spec.failurePolicy.rules[0].onExitCodes: {ALTERNATIVES}",
        ALTERNATIVES,
    ),
    Wrong(
        "window_of_a_large_budget",
        job("failurePolicy: {windowSeconds: 60, maxRestarts: {application: 101}}"),
        "spec.failurePolicy.maxRestarts.application: is 101, but with windowSeconds it is at most"
        " 100; lower it or remove windowSeconds",
        "is 101, but with windowSeconds it is at most 100; lower it or remove windowSeconds",
    ),
    Wrong(
        "account_of_a_group",
        job("extraWorkerGroups:\n- {name: a, replicas: 1, service_account: b}"),
        "'service_account'; use spec.extraWorkerGroups[0].template.spec.serviceAccountName",
        STRICT % "spec.extraWorkerGroups[0].service_account",
    ),
    Wrong(
        "env_as_mapping",
        job("env: {LR: 0.1, DEBUG: true}"),
        'spec.env: must be a list: [{name: LR, value: "0.1"}, {name: DEBUG, value: "true"}]',
        STRICT % "spec.env.DEBUG",
    ),
    Wrong(
        "number_in_env",
        job("env:\n- {name: LR, value: 0.1}"),
        'line 9: spec.env[0].value: must be text; put it in quotes: "0.1"',
        'spec.env[0].value in body must be of type string: "number"',
    ),
    Wrong(
        "processes_of_torchrun",
        job("processesPerWorker: gpu"),
        "must be a whole number of at least 1, or auto (one for each GPU), not 'gpu'",
        "must be a whole number of at least 1, or auto (one for each GPU), not 'gpu'",
    ),
    Wrong(
        "cores",
        job("resources: {limits: {cpu: 4x, memory: 10Gigs}}"),
        f"spec.resources.limits.cpu: {QUANTITY} '4x'",
        f"spec.resources.limits.cpu {NO_MATCH}",
    ),
    Wrong(
        "memory_with_a_space",
        job("resources: {requests: {memory: 10 GB}}"),
        f"spec.resources.requests.memory: {QUANTITY} '10 GB'",
        f"spec.resources.requests.memory {NO_MATCH}",
    ),
    Wrong(
        "memory_without_a_value",
        job("resources: {limits: {memory: ''}}"),
        f"spec.resources.limits.memory: {QUANTITY} ''",
        f"spec.resources.limits.memory {NO_MATCH}",
    ),
    Wrong(
        "gpu_without_its_maker",
        job("resources: {limits: {gpu: 1}}"),
        "spec.resources.limits: 'gpu' is not a resource of Kubernetes; use cpu",
        "'gpu' is not a resource of Kubernetes; use cpu",
    ),
    Wrong(
        "half_a_gpu",
        job("resources: {limits: {nvidia.com/gpu: 1.5}}"),
        "spec.resources.limits: must have a whole number of nvidia.com/gpu, not 1.5",
        "spec.resources.limits.nvidia.com/gpu in body must be of type integer,string",
    ),
    Wrong(
        "resources_without_limits",
        job("resources: {cpu: 4}"),
        "spec.resources.cpu: unknown field 'cpu'; use spec.resources.limits",
        STRICT % "spec.resources.cpu",
    ),
    Wrong(
        "replicas_in_words",
        job(replicas="two"),
        "spec.replicas: must be a whole number, not 'two'",
        'spec.replicas in body must be of type integer: "string"',
    ),
    Wrong(
        "below_minimum",
        job("minReplicas: 3"),
        "spec.replicas: is 2, below minReplicas (3); raise it or lower minReplicas",
        "is 2, below minReplicas (3); raise it or lower minReplicas",
    ),
    Wrong(
        "image_with_a_line_break",
        job().replace("my/trainer", '"my/trainer\\n"'),
        "spec.image: has a space or a line break; remove it",
        "has a space or a line break; remove it",
    ),
    Wrong(
        "elastic_in_one_word",
        job("elastic: true"),
        "spec.elastic: must be a mapping, not true",
        'spec.elastic in body must be of type object: "boolean"',
    ),
    Wrong(
        "truth_in_words",
        job("suspend: 'yes'"),
        "spec.suspend: must be true or false, not 'yes'",
        'spec.suspend in body must be of type boolean: "string"',
    ),
    Wrong(
        "bucket_without_a_scheme",
        job("snapshot: {uri: my-bucket/jobs}"),
        "spec.snapshot.uri: 'my-bucket/jobs' is not a bucket with a prefix",
        "'my-bucket/jobs' is not a bucket with a prefix",
    ),
]

FILES = [
    Wrong(
        "field_twice",
        job("replicas: 3"),
        "line 8: spec.replicas: is given twice, lines 7 and 8; remove one of them",
        'key "replicas" already set in map',
    ),
    Wrong("tab", job("\tgpusPerWorker: 1"), "line 8, column 3: a tab stands where", UNREADABLE),
    Wrong(
        "open_bracket",
        job(command="[torchrun, train.py"),
        "line 7, column 11: expected ',' or ']', but got ':' (while parsing",
        UNREADABLE,
    ),
    Wrong(
        "job_of_kubeflow",
        job(kind="PyTorchJob", version="kubeflow.org/v1"),
        "line 2: kind: is PyTorchJob, not DDPJob; convert it: ddpjob convert FILE",
        "does not match the expected",
    ),
    Wrong(
        "kind_misspelt",
        job(kind="DDPjob"),
        "line 2: kind: must be DDPJob, not 'DDPjob'",
        'kind: Invalid value: "DDPjob": must be DDPJob',
    ),
    Wrong(
        "version",
        job(version="ddpjob.io/v1"),
        "line 1: apiVersion: must be ddpjob.io/v1alpha1, not 'ddpjob.io/v1'",
        STRICT % "spec",
    ),
    Wrong(
        "no_indentation",
        job().replace("  ", ""),
        "line 4: spec: is empty; give it a value or remove it",
        'unknown field "replicas"',
    ),
]

WRONG = [*COMMANDS, *METADATA, *FIELDS, *FILES]
