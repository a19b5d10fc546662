"""A group's pod: the short fields, with the template merged over them."""

from __future__ import annotations

from typing import Any

import pytest

from ddpjob_operator.api.spec.pod.strategic_merge import without_nulls
from support.builders import make_job

JSON = dict[str, Any]
SIDE: JSON = {"name": "logs", "image": "logger", "command": ["tail"]}


def pods(**spec: Any) -> list[JSON]:
    """The spec of each group's pod."""
    job = make_job(**{"image": "my/trainer", **spec})
    return [without_nulls(group.template)["spec"] for group in job.spec.groups()]


def pod_of(template: JSON, **spec: Any) -> JSON:
    (pod,) = pods(template={"spec": template}, **spec)
    return pod


TRAINER: JSON = {"name": "trainer", "image": "my/trainer", "command": ["torchrun", "train.py"]}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param({"nodeSelector": {"gpu": "t4"}}, {"nodeSelector": {"gpu": "t4"}}, id="nodes"),
        pytest.param(
            {"containers": [{"name": "trainer", "workingDir": "/app"}]},
            {"containers": [{**TRAINER, "workingDir": "/app"}]},
            id="field_of_the_trainer",
        ),
        pytest.param({"containers": [SIDE]}, {"containers": [TRAINER, SIDE]}, id="sidecar"),
        pytest.param(
            {"containers": [{"name": "trainer", "args": ["--fast"]}]},
            {"containers": [{**TRAINER, "args": ["--fast"]}]},
            id="arguments",
        ),
        pytest.param(
            {"containers": [{"name": "trainer", "image": "other"}]},
            {"containers": [{**TRAINER, "image": "other"}]},
            id="image",
        ),
    ],
)
def test_a_template_adds_to_the_short_fields(template: JSON, expected: JSON) -> None:
    assert pod_of(template) == {"containers": [TRAINER], **expected}


def test_variables_and_resources_of_both_come_together() -> None:
    own = {
        "name": "trainer",
        "env": [{"name": "B", "value": "template"}, {"name": "C", "value": "3"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    (container,) = pod_of(
        {"containers": [own]},
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "short"}],
        resources={"limits": {"cpu": 2}},
    )["containers"]
    assert container["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    assert [(each["name"], each["value"]) for each in container["env"]] == [
        *(("A", "1"), ("B", "template"), ("C", "3"))
    ]


def test_without_a_command_beside_it_the_first_container_of_a_template_trains() -> None:
    first = {"name": "main", "command": ["torchrun", "a.py"]}
    pod = pod_of({"containers": [first, SIDE]}, command=None, env=[{"name": "A", "value": "1"}])
    assert pod["containers"] == [
        {**first, "image": "my/trainer", "env": [{"name": "A", "value": "1"}]},
        SIDE,
    ]


def test_a_template_with_everything_stays_as_it_is() -> None:
    template = {"containers": [{**SIDE, "name": "main", "ports": [{"containerPort": 1}] * 2}]}
    assert pod_of(template, image=None, command=None) == template


def test_gpus_of_a_sidecar_are_not_those_of_the_processes() -> None:
    side = {**SIDE, "resources": {"limits": {"nvidia.com/gpu": 1}}}
    job = make_job(gpusPerWorker=4, template={"spec": {"containers": [side]}})
    assert job.spec.groups()[0].gpus == 4
    job = make_job(template={"spec": {"containers": [side]}})
    assert job.spec.groups()[0].gpus == 0


def test_a_limit_in_the_template_counts_gpus_beside_the_short_fields() -> None:
    own = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    groups = [
        {"name": "spot", "replicas": 1},
        {"name": "small", "replicas": 1, "resources": {"limits": {"nvidia.com/gpu": 2}}},
    ]
    job = make_job(template={"spec": {"containers": [own]}}, extraWorkerGroups=groups)
    assert [group.gpus for group in job.spec.groups()] == [8, 8, 2]


# --- extra groups --------------------------------------------------------------------------------


def extra(group: JSON, **spec: Any) -> JSON:
    """The pod of an extra group."""
    _, pod = pods(extraWorkerGroups=[{"name": "spot", "replicas": 1, **group}], **spec)
    return pod


def test_a_group_inherits_the_pod_of_the_main_group() -> None:
    template = {"spec": {"nodeSelector": {"gpu": "t4"}, "containers": [SIDE]}}
    assert extra({}, template=template) == pods(template=template)[0]


def test_a_groups_template_is_merged_over_the_inherited_pod() -> None:
    main = {"spec": {"nodeSelector": {"gpu": "t4"}, "serviceAccountName": "trainer"}}
    own = {"spec": {"nodeSelector": {"gpu": "a100"}, "tolerations": [{"operator": "Exists"}]}}
    assert extra({"template": own}, template=main) == {
        "containers": [TRAINER],
        "nodeSelector": {"gpu": "a100"},
        "serviceAccountName": "trainer",
        "tolerations": [{"operator": "Exists"}],
    }


def test_short_fields_of_a_group_are_merged_over_an_inherited_template() -> None:
    """They replace what they name: its arguments, a variable with its source, all resources."""
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    main = {
        "name": "main",
        "image": "a",
        "command": ["torchrun"],
        "args": ["a.py"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": source}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    other = {"configMapKeyRef": {"name": "c", "key": "k"}}
    group = {
        "image": "b",
        "command": ["torchrun", "b.py"],
        "env": [{"name": "A", "valueFrom": source}, {"name": "B", "valueFrom": other}],
        "resources": {"limits": {"cpu": 2}},
    }
    template = {"spec": {"containers": [main, SIDE]}}
    pod = extra(group, image=None, command=None, template=template)
    assert pod["containers"] == [
        {
            "name": "main",
            "image": "b",
            "command": ["torchrun", "b.py"],
            "env": [{"name": "A", "valueFrom": source}, {"name": "B", "valueFrom": other}],
            "resources": {"limits": {"cpu": "2"}},
        },
        SIDE,
    ]


def test_a_groups_template_with_image_and_command_inherits_nothing() -> None:
    """As before templates were merged."""
    whole = {"containers": [{"name": "own", "image": "i", "command": ["torchrun", "b.py"]}]}
    job = {"env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": 1}}}
    assert extra({"template": {"spec": whole}}, gpusPerWorker=2, **job) == whole


def test_what_a_worker_runs_is_read_from_the_merged_pod() -> None:
    own = {"name": "trainer", "args": ["--fast"], "env": [{"name": "B", "value": "2"}]}
    job = make_job(
        image="my/trainer",
        env=[{"name": "A", "value": "1"}],
        template={"spec": {"containers": [{**own, "image": "other"}]}},
    )
    (group,) = job.spec.groups()
    assert (group.image, group.command) == ("other", ("torchrun", "train.py", "--fast"))
    assert [(each.name, each.value) for each in group.env] == [("A", "1"), ("B", "2")]
