"""What goes wrong outside the operator is told in a condition, with the next step, and mends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from e2e.conftest import Images
from e2e.jobs import Endless, endless
from e2e.kubectl import Kubectl
from e2e.volumes import Volumes

NO_PYTHON = "registry.k8s.io/pause:3.10.1"  # the one that every node has

# Name of the row; the job's spec; reason of the condition Stalled, and what its message says.
STALLED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    (
        "image_that_cannot_be_pulled",
        {"image": "localhost:1/no/such:image"},
        "ImageCannotBePulled",
        ["{job}-worker-000-1 cannot start", "correct the image's name and tag"],
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
        ["{job}-worker-000-1 was refused", "Not A Name", "must consist of lower case"],
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


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "small"},
    "spec": {"hard": {"pods": "1"}},
}


@pytest.fixture(scope="module")
def bad(namespace: Callable[[], Kubectl], images: Images, volumes: Volumes) -> dict[str, Endless]:
    """The job of each test, by name; they begin at the same time."""
    here, small = namespace(), namespace()
    manifests = []
    for name, spec, *_ in STALLED:
        manifest = endless(images.digits, name.replace("_", "-"), replicas=1)
        fields = {**manifest["spec"], **spec}
        manifest["spec"] = {key: value for key, value in fields.items() if value is not None}
        manifests.append(manifest)
    here.apply(*manifests, endless("localhost:1/no/such:image", "mended", replicas=1))
    small.apply(QUOTA)
    small.apply(endless(images.digits, "quota", replicas=2))
    volumes.claim(here, "single", "ReadWriteOnce")
    storage = {"persistentVolumeClaim": {"claimName": "single"}}
    claim = endless(
        images.digits, "claim", replicas=1, gpusPerWorker=2, snapshot={"storage": storage}
    )
    claim["spec"]["extraWorkerGroups"] = [{"name": "spot", "replicas": 1, "gpusPerWorker": 1}]
    here.apply(claim)
    jobs = [Endless(here, each["metadata"]["name"]) for each in (*manifests, claim)]
    return {job.name: job for job in (*jobs, Endless(here, "mended"), Endless(small, "quota"))}


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [pytest.param(name.replace("_", "-"), *row, id=name) for name, _, *row in STALLED],
)
def test_stalled_with_reason_and_next_step(
    bad: dict[str, Endless], name: str, reason: str, words: list[str]
) -> None:
    job = bad[name]
    job.kubectl.until(lambda: job.condition("Stalled").get("reason") == reason, reason)
    message = job.condition("Stalled")["message"]
    words = [word.format(job=name) for word in words]
    assert [word for word in words if word not in message] == [], message
    assert job.status["state"] == "Stalled"
    job.kubectl.until(lambda: reason in job.causes(), f"the event {reason}")
    job.kubectl("delete", "ddp", name, "--timeout=180s")


def test_quota_exceeded_and_raised(bad: dict[str, Endless]) -> None:
    job = bad["quota"]
    job.kubectl.until(
        lambda: job.condition("Stalled").get("reason") == "QuotaExceeded", "the reason"
    )
    assert "exceeded quota: small" in job.condition("Stalled")["message"]
    job.kubectl.apply({**QUOTA, "spec": {"hard": {"pods": "10"}}})
    job.until_world(2)
    assert job.condition("Stalled") == {}


def test_claim_of_a_single_node_under_workers_on_two(bad: dict[str, Endless]) -> None:
    job = bad["claim"]
    job.until_world(3)
    assert "only one node can use claim 'single'" in job.condition("Running")["message"]
    job.kubectl.until(lambda: "VolumeNotShared" in job.causes(), "the event VolumeNotShared")


def test_mended_by_the_user(bad: dict[str, Endless], images: Images) -> None:
    """A job that never trained is corrected without a suspension."""
    job = bad["mended"]
    job.kubectl.until(lambda: job.condition("Stalled").get("status") == "True", "the reason")
    job.kubectl.apply(endless(images.digits, "mended", replicas=1))
    job.until_world(1)
    assert job.condition("Stalled") == {}
