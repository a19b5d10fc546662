"""What is read from pods, in the words of real kubelets, runtimes and schedulers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ddpjob_operator.planner.observed import Phase
from support.rawpods import (
    JSON,
    NODE,
    PLACED,
    ended,
    phase,
    raw_pod,
    running,
    the_worker,
    unscheduled,
    waiting,
    worker_manifest,
)

NO_GPU = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: "
    "3 No preemption victims found for incoming pod."
)
NOT_FOUND = (
    'rpc error: code = NotFound desc = failed to pull and unpack image "docker.io/my/trainer:1": '
    'failed to resolve reference "docker.io/my/trainer:1": docker.io/my/trainer:1: not found'
)
NO_PYTHON = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
    'exec: "python3": executable file not found in $PATH: unknown'
)
LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80488Ki. "
LOST = "The container could not be located when the pod was terminated"
INSTALLED = ended(0, "Completed", name="ddpjob-agent")

# Status; phase, reason and message of the worker.
WORKERS: list[tuple[str, JSON, tuple[Phase, str, str]]] = [
    ("not_looked_at_yet", {"phase": "Pending", "qosClass": "BestEffort"}, (Phase.PENDING, "", "")),
    ("no_status", {}, (Phase.PENDING, "", "")),
    ("scheduled", {"phase": "Pending", "conditions": [PLACED]}, (Phase.PENDING, "", "")),
    (
        "installing_the_agent",
        phase("Pending", waiting("PodInitializing"), init=(running("ddpjob-agent"),)),
        (Phase.PENDING, "", ""),
    ),
    (
        "pulling_the_image",
        phase("Pending", waiting("PodInitializing")),
        (Phase.PENDING, "", ""),
    ),
    ("creating", phase("Pending", waiting("ContainerCreating")), (Phase.PENDING, "", "")),
    ("running", phase("Running", running()), (Phase.RUNNING, "", "")),
    (
        "image_that_is_not_there",
        phase("Pending", waiting("ErrImagePull", NOT_FOUND)),
        (Phase.PENDING, "ErrImagePull", NOT_FOUND),
    ),
    (
        "image_that_was_not_there_a_while_ago",
        phase("Pending", waiting("ImagePullBackOff", 'Back-off pulling image "my/trainer:1"')),
        (Phase.PENDING, "ImagePullBackOff", 'Back-off pulling image "my/trainer:1"'),
    ),
    (
        "image_of_the_agent",
        phase(
            "Pending",
            waiting("PodInitializing"),
            init=(waiting("ErrImageNeverPull", "is not present", name="ddpjob-agent"),),
        ),
        (Phase.PENDING, "ErrImageNeverPull", "is not present"),
    ),
    (
        "no_such_secret",
        phase("Pending", waiting("CreateContainerConfigError", 'secret "s3" not found')),
        (Phase.PENDING, "CreateContainerConfigError", 'secret "s3" not found'),
    ),
    (
        "no_python",
        phase("Failed", ended(128, "StartError", NO_PYTHON)),
        (Phase.FAILED, "StartError", NO_PYTHON),
    ),
    (
        "out_of_memory",
        phase("Failed", ended(137, "OOMKilled")),
        (Phase.FAILED, "OOMKilled", "exit code 137"),
    ),
    (
        "last_words",
        phase("Failed", ended(1, "Error", "ValueError: loss is nan\n")),
        (Phase.FAILED, "Error", "ValueError: loss is nan"),
    ),
    ("no_last_words", phase("Failed", ended(1, "Error")), (Phase.FAILED, "Error", "exit code 1")),
    ("done", phase("Succeeded", ended(0, "Completed")), (Phase.SUCCEEDED, "", "")),
    (
        "init_container_that_fails",
        phase(
            "Failed",
            waiting("PodInitializing"),
            init=(INSTALLED, ended(2, "Error", "no data", name="fetch")),
        ),
        (Phase.FAILED, "Error", "no data"),
    ),
    (
        "evicted_before_it_ran",
        {"phase": "Failed", "reason": "Evicted", "message": LOW, "startTime": "2026-01-02"},
        (Phase.FAILED, "Evicted", LOW.strip()),
    ),
    (
        "evicted",
        phase("Failed", ended(137, "ContainerStatusUnknown", LOST), reason="Evicted", message=LOW),
        (Phase.FAILED, "Evicted", LOW.strip()),
    ),
    (
        "evicted_and_only_a_condition_says_so",
        phase(
            "Failed",
            ended(137, "Error"),
            conditions=[
                PLACED,
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "TerminationByKubelet",
                    "message": LOW,
                },
            ],
        ),
        (Phase.FAILED, "TerminationByKubelet", LOW.strip()),
    ),
    (
        "refused_by_the_node",
        {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource"},
        (Phase.FAILED, "OutOfcpu", "Node didn't have enough resource"),
    ),
    ("node_that_is_silent", {"phase": "Unknown"}, (Phase.PENDING, "", "")),
    (
        "sidecar_that_outlives_the_agent",
        phase("Running", running("logs"), ended(0, "Completed")),
        (Phase.SUCCEEDED, "", ""),
    ),
    (
        "sidecar_that_outlives_the_agent_that_failed",
        phase("Running", running("logs"), ended(1, "Error", "bad")),
        (Phase.FAILED, "Error", "bad"),
    ),
    (
        "sidecar_that_ends",
        phase("Running", ended(0, "Completed", name="logs"), running()),
        (Phase.RUNNING, "", ""),
    ),
    (
        "sidecar_that_was_ended_after_the_agent",
        phase("Failed", ended(143, "Error", name="logs"), ended(1, "Error", "bad")),
        (Phase.FAILED, "Error", "bad"),
    ),
    (
        "sidecar_that_was_ended_after_all_went_well",
        phase("Failed", ended(143, "Error", name="logs"), ended(0, "Completed")),
        (Phase.SUCCEEDED, "Error", "exit code 143"),
    ),
]


@pytest.mark.parametrize(
    ("status", "expected"), [pytest.param(*row, id=name) for name, *row in WORKERS]
)
def test_state_of_a_worker(status: JSON, expected: tuple[Phase, str, str]) -> None:
    worker = the_worker(raw_pod(worker_manifest(), status, NODE))
    assert (worker.phase, worker.reason, worker.message) == expected
    assert (worker.node, worker.unschedulable, worker.deleting) == (NODE, None, False)


@pytest.mark.parametrize(
    ("status", "left"),
    [
        pytest.param(phase("Running", running("logs"), ended(1, "Error")), True, id="sidecar"),
        pytest.param(phase("Failed", ended(143, "Error"), ended(1, "Error")), False, id="all_over"),
        pytest.param(phase("Running", ended(0, "", name="logs"), running()), False, id="it_runs"),
    ],
)
def test_a_pod_with_a_sidecar_that_outlives_the_agent_is_known(status: JSON, left: bool) -> None:
    assert the_worker(raw_pod(worker_manifest(), status, NODE)).sidecars_left == left


@pytest.mark.parametrize(
    ("status", "unschedulable"),
    [
        pytest.param(unscheduled(NO_GPU), NO_GPU, id="no_room"),
        pytest.param(
            unscheduled("Scheduling is blocked due to non-empty gates", "SchedulingGated"),
            None,
            id="held_back_by_a_queue",
        ),
    ],
)
def test_a_worker_without_a_node(status: JSON, unschedulable: str | None) -> None:
    worker = the_worker(raw_pod(worker_manifest(), status))
    assert (worker.phase, worker.node, worker.unschedulable) == (Phase.PENDING, None, unschedulable)
    assert worker.message == status["conditions"][0]["message"]


def test_a_worker_behind_gates_names_them() -> None:
    pod = raw_pod(worker_manifest(), unscheduled("non-empty scheduling gates", "SchedulingGated"))
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    worker = the_worker(pod)
    assert worker.gates == ("kueue.x-k8s.io/admission",)
    assert worker.message == "held by the scheduling gates kueue.x-k8s.io/admission"


def test_the_start_of_an_agent_is_known() -> None:
    running = {"name": "trainer", "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}}
    status = {"phase": "Running", "containerStatuses": [running]}
    begin = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert the_worker(raw_pod(worker_manifest(), status, NODE)).running_since == begin


@pytest.mark.parametrize(("word", "ready"), [("True", True), ("False", False), (None, None)])
def test_a_pod_that_does_not_start_has_the_time_of_its_node(
    word: str | None, *, ready: bool | None
) -> None:
    placed = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    conditions = [placed]
    if word is not None:
        conditions.append({"type": "PodReadyToStartContainers", "status": word})
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    status = {"phase": "Pending", "conditions": conditions, "containerStatuses": [waiting]}
    worker = the_worker(raw_pod(worker_manifest(), status, NODE))
    assert worker.placed_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (worker.sandbox_ready, worker.unschedulable_since) == (ready, None)


def test_the_exit_code_and_a_disruption_are_known() -> None:
    done = {"name": "trainer", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    status = {"phase": "Failed", "containerStatuses": [done], "conditions": [target]}
    worker = the_worker(raw_pod(worker_manifest(), status, NODE))
    assert (worker.exit_code, worker.disrupted) == (137, True)
    running = the_worker(raw_pod(worker_manifest(), {"phase": "Running"}, NODE))
    assert (running.exit_code, running.disrupted) == (None, False)
