"""Worker pods: what holds for all of them, and what comes of the fields of a simple job."""

from __future__ import annotations

import pytest

from ddpjob_operator.manifests.build import build_rendezvous, build_worker
from ddpjob_operator.manifests.scheduling import kept_off
from ddpjob_operator.planner.actions import CreateRendezvous, CreateWorker
from support.keys import KEY
from support.rawpods import (
    IMAGE,
    JSON,
    SECRET,
    SIDE,
    TRAIN,
    UID,
    make_cluster_job,
    mounts,
    template_job,
    templated,
    trainer,
    trainer_of,
    values,
    volume,
    worker_manifest,
)

AGENT = ["python3", "/ddpjob/agent.pyz", "worker", "--"]
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
UNREACHABLE = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
STANDARD = {
    "app.kubernetes.io/name": "ddpjob",
    "app.kubernetes.io/instance": "digits",
    "app.kubernetes.io/component": "worker",
    "app.kubernetes.io/part-of": "ddpjob",
    "app.kubernetes.io/managed-by": "ddpjob-operator",
}
OWNER = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "name": "digits",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


# --- what holds for every worker ---------------------------------------------------------------------

BOTH = pytest.mark.parametrize(
    "pod", [worker_manifest(), templated(containers=[SIDE, TRAIN])], ids=["fields", "template"]
)


@BOTH
def test_worker_is_safe_unless_told_otherwise(pod: JSON) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"] == SECCOMP
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 45
    (install,) = spec["initContainers"]
    assert install["securityContext"] == {
        **CONFINED,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()


def test_container_of_a_simple_job_is_confined() -> None:
    assert trainer_of()["securityContext"] == CONFINED


@BOTH
def test_worker_belongs_to_its_job(pod: JSON) -> None:
    metadata = pod["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("digits-worker-000-2", "team")
    assert metadata["ownerReferences"] == [OWNER]
    assert metadata["labels"] == {
        **STANDARD,
        "sidecar.istio.io/inject": "false",
        "ddpjob.io/job": "digits",
        "ddpjob.io/role": "worker",
        "ddpjob.io/group": "worker",
        "ddpjob.io/index": "0",
        "ddpjob.io/incarnation": "2",
        "ddpjob.io/isolated": "true",
        "ddpjob.io/revision": metadata["labels"]["ddpjob.io/revision"],  # test_plan_revision
        "ddpjob.io/key": KEY.fingerprint,
    }


@BOTH
def test_agent_is_put_into_the_users_image_and_runs_its_command(pod: JSON) -> None:
    (install,) = pod["spec"]["initContainers"]
    assert install["image"] == IMAGE
    assert install["command"][:2] == ["cp", "/opt/ddpjob/agent.pyz"]
    assert mounts(install)["/ddpjob"] == "ddpjob-agent"
    container = trainer(pod)
    assert container["image"] == "my/trainer:1"
    assert container["command"] == AGENT
    assert container["args"][0] == "torchrun"
    assert mounts(container) == {
        "/ddpjob": "ddpjob-agent",
        "/snapshots": "ddpjob-snapshots",
        "/dev/shm": "ddpjob-shm",
        "/tmp": "ddpjob-tmp",
    }
    assert volume(pod, "ddpjob-shm") == {"emptyDir": {"medium": "Memory"}}
    for name in ("ddpjob-agent", "ddpjob-snapshots", "ddpjob-tmp"):
        assert volume(pod, name) == {"emptyDir": {}}


@BOTH
def test_agent_is_told_where_it_belongs(pod: JSON) -> None:
    assert values(trainer(pod)) == {
        "DDPJOB_JOB": "team/digits",
        "DDPJOB_JOB_UID": UID,
        "DDPJOB_LAUNCHER": "torchrun",
        "DDPJOB_WORKER": "digits-worker-000-2",
        "DDPJOB_SERVICE": "digits-rendezvous.team.svc:29400",
        "DDPJOB_KEYS": "/ddpjob/keys",
        "DDPJOB_ADDRESS": {"fieldRef": {"fieldPath": "status.podIP"}},
        "DDPJOB_PROCESSES": "1",
        "DDPJOB_ORPHAN_SECONDS": "60",
        "DDPJOB_STUCK_SECONDS": "10",
        "DDPJOB_GRACE_SECONDS": "45",
        "DDPJOB_SNAPSHOT_DIR": "/snapshots/digits",
    }


def test_agent_is_told_which_files_to_keep() -> None:
    job = make_cluster_job(snapshot={"files": ["snapshot.pt", "ckpt/ä *.pt"]})
    told = values(trainer_of(job))["DDPJOB_SNAPSHOT_FILES"]
    assert told == '["snapshot.pt", "ckpt/ä *.pt"]'
    assert job.policy().files
    assert not make_cluster_job().policy().files


def test_agent_is_told_of_the_grace_that_the_users_pod_has() -> None:
    pod = templated(containers=[TRAIN], terminationGracePeriodSeconds=600)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 600
    assert values(trainer(pod))["DDPJOB_GRACE_SECONDS"] == "600"


@BOTH
def test_worker_leaves_a_silent_node_when_its_agent_gives_up(pod: JSON) -> None:
    tolerations = pod["spec"]["tolerations"]
    assert {each["key"] for each in tolerations} == UNREACHABLE
    for each in tolerations:
        assert (each["effect"], each["operator"]) == ("NoExecute", "Exists")
        assert each["tolerationSeconds"] == 60


# --- what a simple job says --------------------------------------------------------------------------


def test_arguments_go_to_the_command_as_they_are() -> None:
    command = ["torchrun", "--", "$(HOME)/train.py"]
    container = trainer_of(make_cluster_job(command=command, args=["-v", "$(A) $$(B)"]))
    assert container["command"] == AGENT
    assert container["args"] == ["torchrun", "--", "$(HOME)/train.py", "-v", "$(A) $$(B)"]


@pytest.mark.parametrize("name", ["PET_MAX_RESTARTS", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "PATH"])
def test_users_variables_win(name: str) -> None:
    network = {"interface": "eth0", "ncclDebug": "WARN"}
    env = [{"name": name, "value": "mine"}]
    expected = {
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_DEBUG": "WARN",
        name: "mine",
    }
    simple = make_cluster_job(env=env, network=network)
    template = {"spec": {"containers": [{**TRAIN, "env": env}]}}
    full = template_job(template, network=network)
    for job in (simple, full):
        found = values(trainer_of(job))
        assert found == {**found, **expected}


def test_variables_keep_their_order_and_their_sources() -> None:
    source = {"secretKeyRef": {"name": "s3", "key": "token"}}
    env = [
        {"name": "ROOT", "value": "/data"},
        {"name": "DATA", "value": "$(ROOT)/digits"},
        {"name": "TOKEN", "valueFrom": source},
    ]
    given = trainer_of(make_cluster_job(env=env))["env"][:3]
    assert given[:2] == env[:2]
    assert given[2]["valueFrom"] == source


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"gpusPerWorker": 4}, {"limits": {"nvidia.com/gpu": "4"}}, id="gpus"),
        pytest.param(
            {"gpusPerWorker": 2, "gpuResource": "amd.com/gpu"},
            {"limits": {"amd.com/gpu": "2"}},
            id="gpus_of_another_maker",
        ),
        pytest.param(
            {
                "gpusPerWorker": 1,
                "resources": {"requests": {"cpu": 0.5, "memory": "1Gi"}, "limits": {"cpu": 2}},
            },
            {
                "requests": {"cpu": "0.5", "memory": "1Gi"},
                "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
            },
            id="beside_others",
        ),
        pytest.param(
            {"resources": {"limits": {"nvidia.com/gpu": 3}}},
            {"limits": {"nvidia.com/gpu": "3"}},
            id="limit",
        ),
    ],
)
def test_resources(spec: JSON, resources: JSON) -> None:
    assert trainer_of(make_cluster_job(**spec)).get("resources", {}) == resources


def test_resources_of_an_extra_group() -> None:
    groups = [{"name": "spot", "replicas": 1, "gpusPerWorker": 2, "image": "other"}]
    job = make_cluster_job(gpusPerWorker=4, extraWorkerGroups=groups)
    container = trainer_of(job, group="spot")
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    assert container["image"] == "other"
    assert values(container)["DDPJOB_PROCESSES"] == "2"


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param({"persistentVolumeClaim": {"claimName": "snapshots"}}, id="claim"),
        pytest.param(
            {"name": "mine", "nfs": {"server": "files", "path": "/snapshots"}}, id="with_a_name"
        ),
    ],
)
def test_snapshots_go_to_the_storage_of_the_job(storage: JSON) -> None:
    job = make_cluster_job(snapshot={"storage": storage, "everySteps": 50, "keep": 2})
    pod = worker_manifest(job)
    source = {key: value for key, value in storage.items() if key != "name"}
    assert volume(pod, "ddpjob-snapshots") == source
    container = trainer(pod)
    assert mounts(container)["/snapshots"] == "ddpjob-snapshots"
    found = values(container)
    assert found["DDPJOB_SNAPSHOT_DIR"] == "/snapshots/digits"
    assert (found["DDPJOB_SNAPSHOT_EVERY"], found["DDPJOB_SNAPSHOT_KEEP"]) == ("50", "2")


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        pytest.param({"emptyDir": {"sizeLimit": "1Gi"}}, str(1 << 30), id="emptyDir"),
        pytest.param({"emptyDir": {"sizeLimit": 2000}}, "2000", id="a_number"),
        pytest.param({"emptyDir": {}}, None, id="without_a_limit"),
        pytest.param({"persistentVolumeClaim": {"claimName": "snapshots"}}, None, id="claim"),
    ],
)
def test_the_limit_of_the_snapshots_volume_is_passed_on(
    storage: JSON, expected: str | None
) -> None:
    """Beyond it, kubelet evicts the pod with all its snapshots."""
    found = values(trainer_of(make_cluster_job(snapshot={"storage": storage})))
    assert found.get("DDPJOB_SNAPSHOT_BYTES") == expected


def test_snapshots_go_to_the_bucket_of_the_job() -> None:
    """The trainer library takes the bucket; the script's own files still have a folder."""
    found = values(trainer_of(make_cluster_job(snapshot={"uri": "s3://b/jobs"})))
    assert found["DDPJOB_SNAPSHOT_URI"] == "s3://b/jobs"
    assert found["DDPJOB_SNAPSHOT_DIR"] == "/snapshots/digits"
    assert "DDPJOB_SNAPSHOT_URI" not in values(trainer_of())


def test_patience_of_the_job_is_the_nodes() -> None:
    pod = worker_manifest(make_cluster_job(elastic={"orphanSeconds": 7.5}))
    assert {each["tolerationSeconds"] for each in pod["spec"]["tolerations"]} == {7}
    assert values(trainer(pod))["DDPJOB_ORPHAN_SECONDS"] == "7.5"


def test_warm_starts_can_be_switched_off() -> None:
    pod = worker_manifest(make_cluster_job(elastic={"warmStart": False}))
    assert values(trainer(pod))["DDPJOB_WARM_START"] == "0"


def test_modules_to_import_in_advance_are_named_to_the_agent() -> None:
    modules = ["transformers.trainer", "accelerate"]
    pod = worker_manifest(make_cluster_job(elastic={"warmImports": modules}))
    assert values(trainer(pod))["DDPJOB_WARM_IMPORTS"] == "transformers.trainer accelerate"


# --- nodes that pods avoid -------------------------------------------------------------------------

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOT_THERE = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
A100 = {"key": "gpu", "operator": "In", "values": ["a100"]}
H100 = {"key": "gpu", "operator": "In", "values": ["h100"]}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param(None, [[NOT_THERE]], id="no_terms"),
        pytest.param([[A100]], [[A100, NOT_THERE]], id="one_term"),
        pytest.param([[A100], [H100]], [[A100, NOT_THERE], [H100, NOT_THERE]], id="alternatives"),
    ],
)
def test_workers_avoid_nodes_beside_the_templates_own_affinity(
    terms: list[list[JSON]] | None, expected: list[list[JSON]]
) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": each} for each in terms or ()]}
    others = {"podAntiAffinity": {"x": 1}}
    given = {**others, **({"nodeAffinity": {REQUIRED: required, "y": 2}} if terms else {})}
    job = template_job({"spec": {"containers": [TRAIN], "affinity": given}})
    action = CreateWorker("digits-worker-000-2", "worker", 0, 2, ("a", "b"))
    spec = build_worker(job, action, IMAGE, KEY, SECRET)["spec"]
    affinity = spec["affinity"]
    assert kept_off(spec) == ("a", "b")
    found = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [each["matchExpressions"] for each in found] == expected
    assert affinity["podAntiAffinity"] == {"x": 1}
    assert affinity["nodeAffinity"].get("y") == (2 if terms else None)
    own = worker_manifest(job)["spec"]
    assert own["affinity"] == given
    assert kept_off(own) == ()


def test_a_pod_is_kept_off_only_the_nodes_that_each_alternative_excludes() -> None:
    one = {**NOT_THERE, "values": ["a"]}
    terms = [{"matchExpressions": [NOT_THERE]}, {"matchExpressions": [A100, one]}]
    spec = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    assert kept_off(spec) == ("a",)


def test_the_rendezvous_pod_avoids_the_nodes_of_its_action() -> None:
    action = CreateRendezvous("digits-rendezvous-3", 3, ("a", "b"))
    affinity = build_rendezvous(make_cluster_job(), action, IMAGE, KEY, SECRET)["spec"]["affinity"]
    assert affinity["nodeAffinity"][REQUIRED] == {
        "nodeSelectorTerms": [{"matchExpressions": [NOT_THERE]}]
    }
    assert affinity["podAntiAffinity"]
    assert "affinity" not in worker_manifest()["spec"]
