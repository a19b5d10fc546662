from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_operator.api.jobfile import JobFileError, parse, warnings

HEAD = """\
apiVersion: ddpjob.io/v1alpha1
kind: DDPJob
metadata: {name: digits}
spec:
"""
GOOD = HEAD + "  replicas: 2\n  command: [torchrun, train.py]\n"
WHAT = "it must hold one DDPJob, which begins with apiVersion, kind, metadata and spec"
# Each line stands for nine times as many values as the line before.
BOMB = "a: &a [1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in itertools.pairwise("abcdefghi")
)


def complaint(text: str) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        parse(text)
    assert "pydantic" not in str(caught.value)
    return str(caught.value).splitlines()


REFUSED: list[tuple[str, str, list[str]]] = [
    ("empty", "", ["the file is empty; it must hold one DDPJob"]),
    ("only_a_separator", "---\n", ["the file is empty; it must hold one DDPJob"]),
    ("only_comments", "# nothing\n", ["the file is empty; it must hold one DDPJob"]),
    ("list", "- a\n", [f"line 1: the file holds a list; {WHAT}"]),
    ("single_value", "\n42\n", [f"line 2: the file holds a single value; {WHAT}"]),
    (
        "two_documents",
        GOOD + "---\n" + GOOD,
        ["line 8: the file holds 2 documents; give each job a file of its own"],
    ),
    (
        "wrong_kind",
        GOOD.replace("DDPJob", "PyTorchJob"),
        ["line 2: kind: is PyTorchJob, not DDPJob; convert it: ddpjob convert FILE"],
    ),
    (
        "wrong_version",
        GOOD.replace("v1alpha1", "v1"),
        ["line 1: apiVersion: must be ddpjob.io/v1alpha1, not 'ddpjob.io/v1'"],
    ),
    ("no_kind", GOOD.replace("kind: DDPJob\n", ""), ["line 1: kind: is missing; add kind: DDPJob"]),
    (
        "no_spec",
        HEAD.replace("spec:\n", ""),
        ["line 1: spec: is missing; add it: desired state of the job"],
    ),
    ("empty_spec", HEAD, ["line 4: spec: is empty; give it a value or remove it"]),
    (
        "no_name",
        GOOD.replace("name: digits", ""),
        ["line 3: metadata.name: is missing; add it: name of the job, unique in its namespace"],
    ),
    (
        "tab",
        HEAD + "\treplicas: 2\n",
        ["line 5, column 1: a tab stands where YAML wants spaces"],
    ),
    (
        "open_bracket",
        HEAD + "  command: [torchrun\n  replicas: 2\n",
        [
            (
                "line 6, column 11: expected ',' or ']', but got ':' "
                "(while parsing a flow sequence at line 5)"
            )
        ],
    ),
    ("two_colons", "a: b: c\n", ["line 1, column 5: mapping values are not allowed here"]),
    (
        "python_object",
        "a: !!python/object:os.system x\n",
        [
            (
                "line 1, column 4: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object:os.system'"
            )
        ],
    ),
    ("too_deep", "[" * 1000, ["the file is nested too deeply"]),
    ("deep", "a: " + "[" * 150 + "]" * 150, ["line 1: the file is nested too deeply"]),
    (
        "loop",
        "a: &a\n  - *a\n",
        ["line 1: an alias (*name) stands inside of what it stands for; remove it"],
    ),
    (
        "bomb",
        BOMB,
        [
            (
                "line 6: there are more than 100000 values, each alias (*name) counted as all that it "
                "stands for; shorten the file"
            )
        ],
    ),
    ("odd_boolean", "a: !!bool x", ["line 1, column 4: 'x' is not true or false"]),
    ("odd_integer", "a: !!int ''", ["line 1, column 4: '' is not an integer"]),
    (
        "odd_number",
        "a: 190:" + "1:" * 200 + "1.5",
        [f"line 1, column 4: '190:{'1:' * 18}' is not a number"],
    ),
    (
        "huge_integer",
        "kind: 0x" + "f" * 5000,
        ["line 1, column 7: an integer has too many digits; put it in quotes if it is text"],
    ),
    (
        "no_json",
        "a: !!binary aaaa",
        [
            "line 1, column 4: could not determine a constructor for the tag 'tag:yaml.org,2002:binary'"
        ],
    ),
    (
        "odd_letter",
        'a: "\\U00110000"',
        ["the file is not valid YAML: chr() arg not in range(0x110000)"],
    ),
    (
        "control_character",
        "a: \x01",
        [
            (
                "the file is not valid YAML: unacceptable character #x0001: "
                "special characters are not allowed"
            )
        ],
    ),
    (
        "given_twice",
        GOOD + "  replicas: 3\n",
        ["line 7: spec.replicas: is given twice, lines 5 and 7; remove one of them"],
    ),
    (
        "misspelt",
        HEAD + "  replica: 2\n  command: [x]\n",
        ["line 5: spec.replica: unknown field 'replica'; did you mean 'replicas'?"],
    ),
    (
        "deep_inside",
        GOOD + "  failurePolicy:\n    maxRestarts:\n      aplication: 3\n",
        [
            (
                "line 9: spec.failurePolicy.maxRestarts.aplication: unknown field 'aplication'; "
                "did you mean 'application'?"
            )
        ],
    ),
    (
        "outside_of_spec",
        GOOD + "replicas: 2\n",
        ["line 7: replicas: unknown field 'replicas' here; it belongs to spec"],
    ),
    (
        "in_a_list",
        GOOD + "  env:\n  - {name: A, value: a}\n  - name: B\n    value: 5\n",
        ['line 10: spec.env[1].value: must be text; put it in quotes: "5"'],
    ),
    (
        "command_as_text",
        GOOD.replace("[torchrun, train.py]", "torchrun train.py"),
        ["line 6: spec.command: must be a list: [torchrun, train.py]"],
    ),
    (
        "rule_between_fields",
        GOOD + "\n  # at least\n  minReplicas: 3\n",
        ["line 5: spec.replicas: is 2, below minReplicas (3); raise it or lower minReplicas"],
    ),
    (
        "not_yet",
        GOOD + "  scheduling: {topologyKey: zone}\n",
        ["line 7: spec.scheduling.topologyKey: is not supported by this version; remove it"],
    ),
    (
        "field_of_a_pod",
        GOOD + "  nodeSelector: {gpu: t4}\n  hostNetwork: true\n  volumeMounts: []\n",
        [
            (
                "line 7: spec.nodeSelector: unknown field 'nodeSelector' here; "
                "it belongs to spec.template.spec"
            ),
            (
                "line 8: spec.hostNetwork: unknown field 'hostNetwork' here; "
                "it belongs to spec.template.spec"
            ),
            (
                "line 9: spec.volumeMounts: unknown field 'volumeMounts' here; "
                "it belongs to spec.template.spec.containers, into the container named trainer"
            ),
        ],
    ),
    (
        "field_of_the_pod_of_a_group",
        GOOD + "  extraWorkerGroups:\n  - {name: spot, replicas: 1, tolerations: []}\n",
        [
            (
                "line 8: spec.extraWorkerGroups[0].tolerations: unknown field 'tolerations' here; "
                "it belongs to spec.extraWorkerGroups[0].template.spec"
            )
        ],
    ),
    (
        "priority_class_in_the_wrong_section",
        GOOD + "  priorityClassName: high\n",
        [
            (
                "line 7: spec.priorityClassName: unknown field 'priorityClassName' here; "
                "it belongs to spec.scheduling"
            )
        ],
    ),
    (
        "several_in_the_order_of_the_file",
        HEAD + "  replicas: two\n  gpusPerWorker: -1\n  command: [x]\n  suspend: maybe\n",
        [
            "line 5: spec.replicas: must be a whole number, not 'two'",
            "line 6: spec.gpusPerWorker: must be at least 0, not -1",
            "line 8: spec.suspend: must be true or false, not 'maybe'",
        ],
    ),
]


@pytest.mark.parametrize(
    ("text", "lines"), [pytest.param(text, lines, id=name) for name, text, lines in REFUSED]
)
def test_refuses_with_the_place_and_a_remedy(text: str, lines: list[str]) -> None:
    assert complaint(text) == lines


def test_reads_a_job() -> None:
    job = parse(GOOD)
    assert (job.metadata.name, job.metadata.namespace) == ("digits", "default")
    assert job.spec.command == ("torchrun", "train.py")


def test_a_date_stays_text() -> None:
    assert parse(GOOD + "  args: [2026-01-02]\n").spec.args == ("2026-01-02",)


def test_anchors_and_merges_are_read() -> None:
    groups = "  extraWorkerGroups:\n  - &a {name: a, replicas: 1}\n  - {<<: *a, name: b}\n"
    assert [group.name for group in parse(GOOD + groups).spec.groups()] == ["worker", "a", "b"]


def test_status_of_another_run_is_left_out() -> None:
    exported = GOOD + "status: {state: Complete, rendezvousTerm: 7}\n"
    assert parse(exported) == parse(GOOD)


@given(st.text(max_size=80), st.integers(0, len(GOOD)))
def test_any_text_gives_a_job_or_a_complaint(text: str, at: int) -> None:
    for each in (text, GOOD[:at] + text + GOOD[at:]):
        with contextlib.suppress(JobFileError):
            parse(each)


LONELY = (
    "as a single process without a process group; use [torchrun, %s], or launcher: python if it "
    "forms the group itself"
)
WRAPPED = f"runs train.py {LONELY.replace('[torchrun, %s]', '`torchrun train.py` there')}"
PINS = "; remove it: ddpjob sets it for each membership"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(["torchrun", "train.py"], [], id="elastic"),
        pytest.param(["accelerate", "launch", "--nnodes", "2"], [], id="no_torchrun"),
        pytest.param(["python", "-u", "-m", "train.py"], [], id="a_module"),
        pytest.param(
            ["/usr/bin/python3.11", "-u", "train.py", "x.py"],
            [],
            id="a_single_process_is_enough",
        ),
        pytest.param(["torchrun", "train.py", "--nnodes=2"], [], id="flag_of_the_script"),
        pytest.param(
            ["torchrun", "--nnodes", "2", "train.py"],
            [f"--nnodes 2 pins the number of workers{PINS}"],
            id="separate_value",
        ),
        pytest.param(
            ["/opt/bin/torchrun", "--nnodes=1:4", "--max-restarts", "3", "train.py"],
            [f"--nnodes=1:4 pins the number of workers{PINS}"],
            id="joined_value_and_path",
        ),
        pytest.param(
            ["python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "x.py"],
            [
                f"--standalone pins the job to a single worker{PINS}",
                f"--nproc_per_node=2 pins the number of processes of each worker{PINS}",
            ],
            id="module_and_underscores",
        ),
        pytest.param(
            ["sh", "-c", "exec torchrun --node-rank 0 train.py"],
            [f"--node-rank 0 pins the rank of the worker{PINS}"],
            id="inside_a_shell",
        ),
        pytest.param(["sh", "-c", "echo 'torchrun"], [], id="unbalanced_quotes"),
    ],
)
def test_commands_that_are_seldom_meant(command: list[str], said: list[str]) -> None:
    text = GOOD.replace("replicas: 2", "replicas: 1")
    job = parse(text.replace("[torchrun, train.py]", str(command)))
    assert list(warnings(job)) == [f"worker: {each}" for each in said]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param("[python, -m, train]", f"runs train {LONELY % '-m, train'}", id="module"),
        pytest.param(
            "[python, -W, ignore, train.py]", f"runs train.py {LONELY % 'train.py'}", id="flag"
        ),
        pytest.param("[python, -m, accelerate.commands.launch, train.py]", "", id="launcher"),
        pytest.param("[python, -c, print()]", "", id="code"),
        pytest.param("[uv, run, torchrun, train.py]", "", id="wrapper"),
        pytest.param("[bash, -c, python train.py]", WRAPPED, id="shell"),
        pytest.param("[bash, run.sh]", "", id="file_of_a_shell"),
        pytest.param(
            "[sh, -euxc, 'cd /app && X=1 exec nohup python -u train.py > log 2>&1']",
            WRAPPED,
            id="wrappers_in_a_shell",
        ),
        pytest.param(
            '[/bin/bash, -o, pipefail, -c, "set -e\\npython train.py \\\\\\n --lr 1 | tee log\\n"]',
            WRAPPED,
            id="several_lines",
        ),
        pytest.param("[bash, -c, python prepare.py && torchrun train.py]", "", id="prepared"),
        pytest.param("[bash, -c, python watch.py & torchrun train.py]", "", id="background"),
        pytest.param("[bash, -c, (torchrun train.py); python done.py]", "", id="group"),
        pytest.param('[bash, -c, "python \'train.py"]', "", id="open_quote"),
        pytest.param("[bash, -c, '']", "", id="empty_line"),
        pytest.param("[bash, -c]", "", id="no_line"),
        pytest.param("[bash, -c, python train.py --rank $NODE_RANK]", "", id="own_group"),
        pytest.param("[env, -u, Y, X=1, python, train.py]", WRAPPED, id="env"),
        pytest.param("[env, X=1]", "", id="env_alone"),
        pytest.param("[env, X=1, torchrun, train.py]", "", id="env_of_torchrun"),
        pytest.param("[nice, -n, '5', time, python, train.py]", WRAPPED, id="nice_and_time"),
        pytest.param("[uv, run, --with, torch, train.py]", WRAPPED, id="uv"),
        pytest.param("[uv, run, '--', python, train.py]", WRAPPED, id="uv_python"),
        pytest.param("[conda, run, -n, x, python, train.py]", WRAPPED, id="conda"),
        pytest.param("[poetry, run, python, train.py]", WRAPPED, id="poetry"),
        pytest.param("[poetry, install]", "", id="no_run"),
        pytest.param("[accelerate, launch, train.py]", "", id="accelerate"),
        pytest.param("[deepspeed, train.py]", "", id="deepspeed"),
        pytest.param("[./train.sh]", "", id="script_of_a_shell"),
    ],
)
def test_commands_that_may_start_a_single_process(command: str, said: str) -> None:
    text = GOOD.replace("[torchrun, train.py]", command)
    assert list(warnings(parse(text))) == ([f"worker: python {said}"] if said else [])
    assert not list(warnings(parse(text + "  launcher: python\n")))


def test_a_suspended_job_may_have_any_command_until_it_is_resumed() -> None:
    text = GOOD.replace("[torchrun, train.py]", "[python, train.py]")
    assert "starts one process in each worker" in complaint(text)[0]
    (said,) = warnings(parse(text + "  suspend: true\n"))
    assert said == f"worker: python runs train.py {LONELY % 'train.py'}"


OWN_SIZE = (
    "pins the number of processes; remove it: without it mpirun starts one for each slot of the "
    "workers that there are"
)
AT_ONE = (
    "runs as a single process at the first worker; put mpirun before it, which starts it in every "
    "slot of all workers"
)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(["mpirun", "-x", "A=1", "python", "train.py", "-np", "3"], "", id="elastic"),
        pytest.param(["sh", "-c", "mpirun train.py && mpirun test.py"], "", id="inside_a_shell"),
        pytest.param(["/usr/bin/mpirun.openmpi", "train.py"], "", id="as_debian_calls_it"),
        pytest.param(
            ["/opt/bin/mpirun", "--bind-to", "none", "-np", "6", "python", "train.py"],
            f"-np 6 {OWN_SIZE}",
            id="size",
        ),
        pytest.param(
            ["python", "train.py"],
            f"python {AT_ONE}",
            id="no_mpirun",
        ),
    ],
)  # fmt: skip
def test_commands_that_are_seldom_meant_below_mpi(command: list[str], said: str) -> None:
    text = GOOD.replace("[torchrun, train.py]", json.dumps(command)) + "  launcher: mpi\n"
    assert list(warnings(parse(text))) == ([f"worker: {said}"] if said else [])
