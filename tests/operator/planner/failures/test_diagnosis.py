"""What is said of the words of kubelets, container runtimes and schedulers."""

from __future__ import annotations

import pytest

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.planner.failures.diagnosis import diagnose

RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
)
CRUN = "container create failed: "
DOCKER = (
    "OCI runtime create failed: container_linux.go:380: starting container process caused: "
    'exec: \\"python3\\": executable file not found in $PATH: unknown'
)
GVISOR = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    'creating container: starting container: error finding executable "python3" in PATH '
    "[/usr/local/bin /usr/bin /bin]: no such file or directory: unknown"
)
GONE = 'error mounting "/srv/python3.11" to rootfs at "/data": no such file or directory: unknown'

KNOWN: list[tuple[str, str, str, Reason]] = [
    (
        "no_python_for_runc",
        "StartError",
        RUNC + 'exec: "python3": executable file not found in $PATH: unknown',
        Reason.PYTHON_MISSING,
    ),
    (
        "no_python_for_crun",
        "CreateContainerError",
        CRUN + "executable file `python3` not found in $PATH: No such file or directory",
        Reason.PYTHON_MISSING,
    ),
    ("no_python_for_docker", "ContainerCannotRun", DOCKER, Reason.PYTHON_MISSING),
    ("no_python_for_docker_yet", "RunContainerError", DOCKER, Reason.PYTHON_MISSING),
    ("no_python_for_gvisor", "StartError", GVISOR, Reason.PYTHON_MISSING),
    (
        "another_program",
        "StartError",
        RUNC + 'exec: "nvidia-entrypoint": executable file not found in $PATH: unknown',
        Reason.CONTAINER_CANNOT_START,
    ),
    ("mount_that_only_sounds_like_it", "StartError", RUNC + GONE, Reason.CONTAINER_CANNOT_START),
    ("start_without_a_word", "RunContainerError", "", Reason.CONTAINER_CANNOT_START),
    (
        "name_taken_on_the_node",
        "CreateContainerError",
        "context deadline exceeded",
        Reason.CONTAINER_CANNOT_START,
    ),
    (
        "secret",
        "CreateContainerConfigError",
        'secret "s3" not found',
        Reason.CONTAINER_CANNOT_START,
    ),
    (
        "root",
        "CreateContainerConfigError",
        "container has runAsNonRoot and image will run as root",
        Reason.CONTAINER_CANNOT_START,
    ),
    ("pull", "ErrImagePull", "not found", Reason.IMAGE_NOT_PULLED),
    ("pull_later", "ImagePullBackOff", 'Back-off pulling image "x"', Reason.IMAGE_NOT_PULLED),
    ("pull_forbidden", "ErrImageNeverPull", "", Reason.IMAGE_NOT_PULLED),
    ("pull_of_a_strange_name", "InvalidImageName", "invalid", Reason.IMAGE_NOT_PULLED),
    ("signature", "SignatureValidationFailed", "unsigned", Reason.IMAGE_NOT_PULLED),
    ("memory", "OOMKilled", "exit code 137", Reason.OUT_OF_MEMORY),
    (
        "claim",
        "Unschedulable",
        '0/3 nodes are available: persistentvolumeclaim "snapshots" not found. preemption: 0/3',
        Reason.VOLUME_MISSING,
    ),
]


@pytest.mark.parametrize(
    ("reason", "message", "expected"), [pytest.param(*row, id=name) for name, *row in KNOWN]
)
def test_what_is_known_has_a_reason_and_a_remedy(
    reason: str, message: str, expected: Reason
) -> None:
    found = diagnose(reason, message)
    assert found is not None
    assert found.reason is expected
    assert found.remedy


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        pytest.param("", "", id="nothing_wrong"),
        pytest.param("ContainerCreating", "", id="on_its_way"),
        pytest.param("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.", id="no_room"),
        pytest.param("Evicted", "The node was low on resource: memory.", id="evicted"),
        pytest.param("CrashLoopBackOff", "back-off 10s restarting failed container", id="loop"),
        pytest.param("SomethingErrImagePull", "", id="only_a_part_of_the_word"),
        # The agent runs, so there is a python3; these are the last words of the user's command.
        pytest.param(
            "Error",
            "'python3': can't open file '/app/trian.py': [Errno 2] No such file or directory",
            id="script_that_is_not_there",
        ),
        pytest.param("Error", "ValueError: ErrImagePull OOMKilled", id="words_in_a_message"),
    ],
)
def test_nothing_is_said_of_anything_else(reason: str, message: str) -> None:
    assert diagnose(reason, message) is None


def test_remedies_tell_one_reason_from_another() -> None:
    missing, refused = (
        diagnose("StartError", text) for text in (RUNC + 'exec: "python3": not found', "bad mount")
    )
    assert missing is not None
    assert refused is not None
    assert "python3" in missing.remedy
    assert missing.remedy != refused.remedy
