"""Patches of a pod template, with the result: by the model, and by a real API server."""

from __future__ import annotations

from typing import Any, NamedTuple

Template = dict[str, Any]

CONTAINER: Template = {
    "name": "trainer",
    "image": "a:1",
    "command": ["torchrun", "a.py"],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "ports": [{"name": "web", "containerPort": 80}],
}
SIDE: Template = {"name": "logs", "image": "logger:1"}
ORIGINAL: Template = {
    "metadata": {"labels": {"team": "vision", "app": "digits"}, "annotations": {"a": "1"}},
    "spec": {
        "containers": [CONTAINER, SIDE],
        "initContainers": [{"name": "fetch", "image": "fetch:1"}],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "more", "emptyDir": {}}],
        "nodeSelector": {"gpu": "t4", "zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "one"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "securityContext": {"runAsUser": 1000, "supplementalGroups": [1, 2]},
        "serviceAccountName": "trainer",
        "terminationGracePeriodSeconds": 60,
    },
}


class Case(NamedTuple):
    """A patch, and the fields of the pod's spec that it changes; None: absent."""

    id: str
    patch: Template
    changed: Template


def trainer(**fields: Any) -> Template:
    """A patch of the container that trains."""
    return {"spec": {"containers": [{"name": "trainer", **fields}]}}


def changed(**fields: Any) -> Template:
    """The containers after a change of that container; None removes a field."""
    whole = {**CONTAINER, **fields}
    return {"containers": [{key: value for key, value in whole.items() if value is not None}, SIDE]}


CASES = [
    Case("nothing", {}, {}),
    Case(
        "a_text_and_a_number",
        {"spec": {"serviceAccountName": "other", "terminationGracePeriodSeconds": 5}},
        {"serviceAccountName": "other", "terminationGracePeriodSeconds": 5},
    ),
    Case(
        "a_mapping_merges",
        {"spec": {"nodeSelector": {"zone": "b", "disk": "ssd"}}},
        {"nodeSelector": {"gpu": "t4", "zone": "b", "disk": "ssd"}},
    ),
    Case(
        "a_null_deletes_a_field",
        {"spec": {"nodeSelector": {"zone": None}, "tolerations": None, "hostname": None}},
        {"nodeSelector": {"gpu": "t4"}, "tolerations": None},
    ),
    Case(
        "a_mapping_is_replaced",
        {"spec": {"nodeSelector": {"$patch": "replace", "disk": "ssd"}}},
        {"nodeSelector": {"disk": "ssd"}},
    ),
    Case(
        "a_mapping_is_emptied",
        {"spec": {"securityContext": {"$patch": "delete"}}},
        {"securityContext": {}},
    ),
    Case(
        "an_atomic_list_is_replaced",
        {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}},
        {"tolerations": [{"key": "spot", "operator": "Exists"}]},
    ),
    Case(
        "a_list_of_numbers_is_replaced",
        {"spec": {"securityContext": {"supplementalGroups": [3]}}},
        {"securityContext": {"runAsUser": 1000, "supplementalGroups": [3]}},
    ),
    Case("a_container_merges_by_name", trainer(image="b:2"), changed(image="b:2")),
    Case("a_command_is_replaced", trainer(command=["python"]), changed(command=["python"])),
    Case("a_field_of_a_container_is_deleted", trainer(ports=None), changed(ports=None)),
    Case(
        "a_container_is_added",
        {"spec": {"containers": [{"name": "proxy", "image": "p"}]}},
        {"containers": [CONTAINER, SIDE, {"name": "proxy", "image": "p"}]},
    ),
    Case(
        "a_container_is_deleted",
        {"spec": {"containers": [{"$patch": "delete", "name": "logs"}]}},
        {"containers": [CONTAINER]},
    ),
    Case(
        "all_containers_are_replaced",
        {"spec": {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]}},
        {"containers": [{"name": "only", "image": "o"}]},
    ),
    Case(
        "variables_merge_by_name",
        trainer(env=[{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]),
        changed(
            env=[
                {"name": "A", "value": "1"},
                {"name": "B", "value": "3"},
                {"name": "C", "value": "4"},
            ]
        ),
    ),
    Case(
        "a_variable_changes_its_source",
        trainer(
            env=[
                {
                    "name": "A",
                    "value": None,
                    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
                }
            ]
        ),
        changed(
            env=[
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "B", "value": "2"},
            ]
        ),
    ),
    Case(
        "a_variable_is_deleted",
        trainer(env=[{"$patch": "delete", "name": "A"}, {"name": "C", "value": "4"}]),
        changed(env=[{"name": "B", "value": "2"}, {"name": "C", "value": "4"}]),
    ),
    Case(
        "resources_merge",
        trainer(resources={"limits": {"cpu": "4"}, "requests": {"cpu": "1"}}),
        changed(resources={"limits": {"cpu": "4", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
    ),
    Case(
        "resources_are_replaced",
        trainer(resources={"$patch": "replace", "limits": {"cpu": "4"}}),
        changed(resources={"limits": {"cpu": "4"}}),
    ),
    Case(
        "mounts_merge_by_path",
        trainer(
            volumeMounts=[
                {"mountPath": "/data", "name": "more"},
                {"mountPath": "/more", "name": "more"},
            ]
        ),
        changed(
            volumeMounts=[
                {"name": "more", "mountPath": "/data"},
                {"name": "more", "mountPath": "/more"},
            ]
        ),
    ),
    Case(
        "ports_merge_by_number",
        trainer(ports=[{"containerPort": 80, "name": "http"}, {"containerPort": 81}]),
        changed(ports=[{"name": "http", "containerPort": 80}, {"containerPort": 81}]),
    ),
    Case(
        "from_an_absent_list",
        trainer(envFrom=[{"secretRef": {"name": "s3"}}]),
        changed(envFrom=[{"secretRef": {"name": "s3"}}]),
    ),
    Case(
        "init_containers_merge_by_name",
        {"spec": {"initContainers": [{"name": "fetch", "image": "fetch:2"}]}},
        {"initContainers": [{"name": "fetch", "image": "fetch:2"}]},
    ),
    Case(
        "a_volume_is_added",
        {"spec": {"volumes": [{"name": "own", "persistentVolumeClaim": {"claimName": "c"}}]}},
        {
            "volumes": [
                *ORIGINAL["spec"]["volumes"],
                {"name": "own", "persistentVolumeClaim": {"claimName": "c"}},
            ]
        },
    ),
    Case(
        "a_volume_changes_its_source",
        {"spec": {"volumes": [{"name": "more", "emptyDir": None, "secret": {"secretName": "s"}}]}},
        {
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "more", "secret": {"secretName": "s"}},
            ]
        },
    ),
    Case(
        "pull_secrets_add_up",
        {"spec": {"imagePullSecrets": [{"name": "two"}]}},
        {"imagePullSecrets": [{"name": "one"}, {"name": "two"}]},
    ),
    Case(
        "aliases_merge_by_address",
        {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}]}},
        {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}]},
    ),
    Case(
        "constraints_are_added",
        {
            "spec": {
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
                ]
            }
        },
        {
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        },
    ),
    Case(
        "directives_that_meet_nothing",
        {
            "spec": {
                "affinity": {"$patch": "delete"},
                "readinessGates": None,
                "dnsConfig": {"searches": ["a"], "options": None},
            }
        },
        {"dnsConfig": {"searches": ["a"]}},
    ),
]
