"""What goes wrong outside the operator is told in a condition, with the next step, and mends."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.conftest import Images
from e2e.jobs import Endless, endless
from e2e.kubectl import Kubectl
from e2e.volumes import claim

NO_PYTHON = "registry.k8s.io/pause:3.10.1"  # the one that every node has

# Name of the row; the job's spec; reason of the condition Stalled, and what its message says.
STALLED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    (
        "image_that_cannot_be_pulled",
        {"image": "localhost:1/no/such:image"},
        "ImageCannotBePulled",
        ["bad-worker-000-1 cannot start", "correct the image's name and tag"],
    ),
    (
        "image_without_python",
        {"image": NO_PYTHON},
        "PythonMissing",
        ["executable file not found", "the image needs python3, 3.9 or newer"],
    ),
    (
        "template_with_an_unknown_field",
        {
            "image": None,
            "command": None,
            "template": {
                "spec": {"containers": [{"name": "trainer", "imag": "x", "command": ["true"]}]}
            },
        },
        "PodRefused",
        ['unknown field "spec.containers[0].imag"'],
    ),
    (
        "template_that_the_api_server_refuses",
        {
            "image": None,
            "command": None,
            "template": {
                "spec": {"containers": [{"name": "Not A Name", "image": "x", "command": ["true"]}]}
            },
        },
        "PodRefused",
        ["bad-worker-000-1 was refused", "Not A Name", "must consist of lower case"],
    ),
    (
        "no_node_that_fits",
        {"gpusPerWorker": 64},
        "TooFewPlaced",
        ["0/1 placed", "Insufficient nvidia.com/gpu", "at least 1 must be placed"],
    ),
    (
        "claim_that_is_not_there",
        {"snapshot": {"storage": {"persistentVolumeClaim": {"claimName": "nothing"}}}},
        "VolumeMissing",
        ['persistentvolumeclaim "nothing" not found', "create the claim"],
    ),
]


@pytest.mark.parametrize(
    ("spec", "reason", "words"), [pytest.param(*row, id=name) for name, *row in STALLED]
)
def test_stalled_with_reason_and_next_step(
    kubectl: Kubectl, images: Images, spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    bad = endless(images.digits, "bad", replicas=1)
    bad["spec"] = {k: v for k, v in {**bad["spec"], **spec}.items() if v is not None}
    kubectl.apply(bad)
    job = Endless(kubectl, "bad")
    kubectl.until(lambda: job.condition("Stalled").get("reason") == reason, reason)
    message = job.condition("Stalled")["message"]
    assert [word for word in words if word not in message] == [], message
    assert job.status["state"] == "Stalled"
    assert reason in job.causes()
    kubectl("delete", "ddp", "bad", "--timeout=180s")


def test_quota_exceeded_and_raised(kubectl: Kubectl, images: Images) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "1"}},
    }
    kubectl.apply(quota)
    kubectl.apply(endless(images.digits, "bad", replicas=2))
    job = Endless(kubectl, "bad")
    kubectl.until(lambda: job.condition("Stalled").get("reason") == "QuotaExceeded", "the reason")
    assert "exceeded quota: small" in job.condition("Stalled")["message"]
    quota["spec"] = {"hard": {"pods": "10"}}
    kubectl.apply(quota)
    job.until_world(2)
    assert job.condition("Stalled")["status"] == "False"


def test_claim_of_a_single_node_under_workers_on_two(
    kubectl: Kubectl, images: Images, shared_folder: str
) -> None:
    with claim(kubectl, "single", shared_folder, images.digits, "ReadWriteOnce"):
        storage = {"persistentVolumeClaim": {"claimName": "single"}}
        job = endless(
            images.digits, "bad", replicas=1, gpusPerWorker=4, snapshot={"storage": storage}
        )
        job["spec"]["extraWorkerGroups"] = [{"name": "spot", "replicas": 1, "gpusPerWorker": 2}]
        kubectl.apply(job)
        bad = Endless(kubectl, "bad")
        bad.until_world(6)
        assert "only one node can use claim 'single'" in bad.condition("Running")["message"]
        assert "VolumeNotShared" in bad.causes()


def test_mended_by_the_user(kubectl: Kubectl, images: Images) -> None:
    """A job that stalls is left by correcting it, here after suspending it."""
    kubectl.apply(endless("localhost:1/no/such:image", "bad", replicas=1))
    job = Endless(kubectl, "bad")
    kubectl.until(lambda: job.condition("Stalled").get("status") == "True", "the reason")
    kubectl("patch", "ddp", "bad", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    kubectl("wait", "--for=condition=Suspended", "ddp/bad", "--timeout=180s")
    good = endless(images.digits, "bad", replicas=1, suspend=True)
    kubectl.apply(good)
    good["spec"]["suspend"] = False
    kubectl.apply(good)
    job.until_world(1)
    assert job.condition("Stalled")["status"] == "False"
