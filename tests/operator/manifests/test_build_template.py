"""Worker pods from templates: what the user says stays, and no shape of it breaks the operator."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpjob_operator.api.spec import DDPJob
from support.rawpods import (
    JSON,
    SIDE,
    TRAIN,
    make_cluster_job,
    mounts,
    rendezvous_manifest,
    template_job,
    templated,
    trainer,
    trainer_of,
    values,
    worker_manifest,
)

OURS = {"ddpjob-agent", "ddpjob-snapshots", "ddpjob-shm", "ddpjob-tmp"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("automountServiceAccountToken", True, id="token"),
        pytest.param("enableServiceLinks", True, id="service_links"),
        pytest.param("securityContext", {"runAsUser": 1000, "fsGroup": 1000}, id="user"),
        pytest.param("serviceAccountName", "trainer", id="account"),
        pytest.param("nodeSelector", {"gpu": "t4"}, id="nodes"),
        pytest.param("hostNetwork", True, id="network"),
        pytest.param("terminationGracePeriodSeconds", 90, id="grace"),
        pytest.param("imagePullSecrets", [{"name": "pull"}], id="pull_secret"),
    ],
)
def test_what_the_template_says_of_the_pod_stays(field: str, value: Any) -> None:
    assert templated(**{field: value})["spec"][field] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("securityContext", {"privileged": True}, id="security"),
        pytest.param("workingDir", "/app", id="folder"),
        pytest.param("envFrom", [{"secretRef": {"name": "s3"}}], id="variables_of_a_secret"),
        pytest.param("resources", {"limits": {"cpu": "2"}}, id="resources"),
        pytest.param("lifecycle", {"preStop": {"sleep": {"seconds": 1}}}, id="lifecycle"),
        pytest.param("terminationMessagePolicy", "File", id="last_words"),
    ],
)
def test_what_the_template_says_of_the_trainer_stays(field: str, value: Any) -> None:
    assert trainer(templated({field: value}))[field] == value


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        pytest.param({"hostNetwork": True}, "ClusterFirstWithHostNet", id="network_of_the_node"),
        pytest.param({"hostNetwork": True, "dnsPolicy": "Default"}, "Default", id="own_choice"),
        pytest.param({"hostNetwork": False}, None, id="network_of_the_pod"),
        pytest.param({}, None, id="nothing_said"),
    ],
)
def test_a_worker_finds_the_service_by_name(given: JSON, policy: str | None) -> None:
    """In the node's network a kubelet gives a pod the node's DNS, which knows no Service."""
    assert templated(**given)["spec"].get("dnsPolicy") == policy


def test_sidecars_are_left_alone() -> None:
    pod = templated(containers=[SIDE, TRAIN], initContainers=[{**SIDE, "name": "fetch"}])
    assert pod["spec"]["containers"][0] == SIDE
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["ddpjob-agent", "fetch"]
    assert pod["spec"]["initContainers"][1] == {**SIDE, "name": "fetch"}


def test_without_a_container_called_trainer_the_first_one_trains() -> None:
    pod = templated(containers=[{**TRAIN, "name": "main"}, SIDE])
    assert trainer(pod, "main")["args"] == ["torchrun", "a.py"]
    assert pod["spec"]["containers"][1] == SIDE


@pytest.mark.parametrize("user", [0, 1000])
def test_the_agent_is_installed_as_the_user_of_the_pod(user: int) -> None:
    """A kubelet refuses to run a container as root that says it must not be."""
    (install,) = templated(securityContext={"runAsUser": user})["spec"]["initContainers"]
    assert "runAsUser" not in install["securityContext"]
    assert install["securityContext"]["runAsNonRoot"] is (user != 0)


def test_labels_and_annotations_are_kept_but_for_ours() -> None:
    mine = {"team": "vision", "ddpjob.io/role": "rendezvous", "ddpjob.io/job": "other"}
    metadata = templated(
        metadata={"labels": mine, "annotations": {"a": "b"}, "name": "x", "namespace": "y"}
    )["metadata"]
    labels = metadata["labels"]
    assert (labels["team"], labels["ddpjob.io/role"]) == ("vision", "worker")
    assert labels["ddpjob.io/job"] == "digits"
    assert metadata["annotations"]["a"] == "b"
    assert (metadata["name"], metadata["namespace"]) == ("digits-worker-000-2", "team")


def test_pod_is_never_restarted_in_its_place() -> None:
    assert templated(restartPolicy="Always")["spec"]["restartPolicy"] == "Never"


def test_our_variables_win_and_others_stay() -> None:
    env = [
        {"name": "DDPJOB_KEYS", "value": "forged"},
        {"name": "DDPJOB_ADDRESS", "value": "10.0.0.1"},
        {"name": "PET_RDZV_CONF", "value": "join_timeout=30"},
    ]
    container = trainer(templated({"env": env}))
    found = values(container)
    assert found["DDPJOB_KEYS"] != "forged"
    assert found["DDPJOB_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found["PET_RDZV_CONF"] == "join_timeout=30"


@pytest.mark.parametrize("path", ["/dev/shm", "/tmp", "/snapshots", "/snapshots/"])
def test_a_mount_of_the_users_own_wins(path: str) -> None:
    pod = templated(
        {"volumeMounts": [{"name": "mine", "mountPath": path}]},
        volumes=[{"name": "mine", "emptyDir": {"sizeLimit": "1Gi"}}],
    )
    found = mounts(trainer(pod))
    assert found[path] == "mine"
    assert len(found) == 4
    used = {each["name"] for each in pod["spec"]["volumes"]}
    assert used == {*found.values(), "ddpjob-keys"}
    assert "mine" in used


@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, {"name": ["x"]}, {"name": None}], ids=str)
def test_odd_volumes_and_mounts_are_left_to_the_api_server(odd: object) -> None:
    limited = {"name": "mine", "emptyDir": {"sizeLimit": "1Gi"}}
    mount = {"name": "mine", "mountPath": "/snapshots"}
    wrong = {"name": "mine", "mountPath": 7}
    pod = templated(
        {"volumeMounts": [odd, wrong, mount]},
        volumes=[odd, {"name": "x", "emptyDir": odd}, limited],
    )
    assert len(pod["spec"]["volumes"]) == 3 + 4
    assert values(trainer(pod))["DDPJOB_SNAPSHOT_BYTES"] == str(1 << 30)


def test_other_mounts_are_kept_beside_ours() -> None:
    pod = templated(
        {"volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]},
        volumes=[{"name": "data", "hostPath": {"path": "/srv"}}],
    )
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in trainer(pod)["volumeMounts"]
    assert {each["name"] for each in pod["spec"]["volumes"]} == {"data", "ddpjob-keys", *OURS}


def test_tolerations_are_kept_and_ours_added() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    patient = {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}
    tolerations = templated(tolerations=[gpu, patient])["spec"]["tolerations"]
    assert tolerations[1:] == [gpu, patient]
    assert [each["key"] for each in tolerations[:1]] == ["node.kubernetes.io/not-ready"]


def test_gpus_may_be_counted_beside_a_template() -> None:
    template = {"spec": {"containers": [{**TRAIN, "resources": {"requests": {"cpu": "4"}}}]}}
    job = template_job(template, gpusPerWorker=2)
    container = trainer_of(job)
    assert container["resources"] == {
        "requests": {"cpu": "4"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    assert values(container)["DDPJOB_PROCESSES"] == "2"


def test_limit_in_a_template_counts_gpus() -> None:
    container = trainer(templated({"resources": {"limits": {"nvidia.com/gpu": 8}}}))
    assert values(container)["DDPJOB_PROCESSES"] == "8"


def test_the_job_is_not_changed_by_building_its_pods() -> None:
    job = template_job({"spec": {"containers": [{**TRAIN}]}})
    before = copy.deepcopy(job.to_json())
    assert worker_manifest(job) == worker_manifest(job)
    assert job.to_json() == before


# --- templates of any shape --------------------------------------------------------------------------

FIELDS = st.sampled_from(
    [
        *("metadata", "labels", "annotations", "spec", "containers", "initContainers", "volumes"),
        *("name", "command", "args", "env", "value", "volumeMounts", "mountPath", "resources"),
        *("limits", "nvidia.com/gpu", "tolerations", "key", "securityContext", "imagePullSecrets"),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.sampled_from(["", "trainer", "/tmp", "/dev/shm", "DDPJOB_KEYS", "2", "²", "1Gi", "x"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(FIELDS, ANYTHING, max_size=4)
CONTAINERS = st.builds(
    lambda extra, command: {**extra, "command": command},
    st.dictionaries(FIELDS, ANYTHING, max_size=5),
    st.lists(SCALARS, min_size=1, max_size=3),
)
TEMPLATES = st.builds(
    lambda metadata, spec, container, others: {
        "metadata": metadata,
        "spec": {**spec, "containers": [container, *others]},
    },
    OBJECTS,
    OBJECTS,
    CONTAINERS,
    st.lists(ANYTHING, max_size=2),
)


def accepted(template: Any, **spec: Any) -> DDPJob | None:
    """The job with this template, if there is one."""
    try:
        return make_cluster_job(**{"image": None, "command": None, "template": template, **spec})
    except ValidationError:
        return None


SHORT: list[JSON] = [
    {},
    {"image": "my/trainer:1", "command": ["torchrun", "b.py"]},
    {"env": [{"name": "A", "value": "1"}], "resources": {"limits": {"cpu": 1}}},
]


@settings(max_examples=500)
@given(TEMPLATES | OBJECTS, st.sampled_from([None, 0, 3]), st.sampled_from(SHORT))
def test_any_template_that_is_accepted_becomes_pods(
    template: JSON, gpus: int | None, short: JSON
) -> None:
    job = accepted(template, gpusPerWorker=gpus, **short)
    if job is not None:
        check_pods(job)


@given(TEMPLATES | OBJECTS, TEMPLATES | OBJECTS, st.sampled_from(SHORT))
def test_any_template_of_a_group_that_is_accepted_becomes_pods(
    template: JSON, own: JSON, short: JSON
) -> None:
    group = {"name": "spot", "replicas": 1, "template": own, **short}
    job = accepted(template, extraWorkerGroups=[group])
    if job is not None:
        check_pods(job, "spot")


def check_pods(job: DDPJob, group: str = "worker") -> None:
    """Every shape becomes JSON that the API server can judge."""
    worker = worker_manifest(job, group=group)
    for pod in (worker, rendezvous_manifest(job)):
        assert json.loads(json.dumps(pod)) == pod
        assert pod["metadata"]["labels"]["ddpjob.io/job"] == "digits"
        assert pod["metadata"]["ownerReferences"]
    spec = worker["spec"]
    assert spec["restartPolicy"] == "Never"
    assert any(isinstance(c, dict) and c.get("args") for c in spec["containers"])


@given(TEMPLATES)
def test_a_template_with_a_command_is_accepted(template: JSON) -> None:
    first = template["spec"]["containers"][0]
    only = {
        **template,
        "spec": {**template["spec"], "containers": [{**first, "command": ["torchrun"]}]},
    }
    assert accepted(only) is not None


def test_a_trainer_that_says_nothing_of_security_is_confined() -> None:
    found = trainer(templated({}))
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert found["securityContext"]["allowPrivilegeEscalation"] is False
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"
