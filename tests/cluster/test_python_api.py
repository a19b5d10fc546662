"""`ddpjob.Job` against a real API server, where no operator acts: the status is written here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cluster.jobs import Jobs
from ddpjob import ClusterError, Job, JobFailedError, WaitTimeoutError
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import MembershipStatus, ProgressStatus
from ddpjob_operator.planner.status.conditions import condition
from support.builders import NOW, make_status
from support.pages import examples, execute

MEMBERSHIP = MembershipStatus(
    id="1.1.1", workers=("digits-worker-000-1",), world_size=1, since=NOW, cause="started"
)


@pytest.fixture(autouse=True)
def _kubeconfig(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The context of the user names the test's namespace."""
    config = yaml.safe_load(jobs.server.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = jobs.namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.chdir(tmp_path)


def make_job(name: str = "digits", **spec: object) -> Job:
    return Job(name, image="trainer", command=["torchrun", "train.py"], **spec)  # type: ignore[arg-type]


@pytest.fixture
def end(jobs: Jobs) -> Callable[..., None]:
    """Writes the status of a job that has ended."""

    def write(kind: ConditionType, reason: Reason, message: str, name: str = "digits") -> None:
        status = make_status(
            state=str(kind),
            conditions=(condition(kind, True, reason, message),),
            membership=MEMBERSHIP,
            progress=ProgressStatus(step=100, total_steps=100),
        )
        jobs.write_status(status, name)

    return write


def test_a_job_is_applied_changed_and_deleted(jobs: Jobs) -> None:
    job = make_job(labels={"team": "vision"}).apply()
    assert job.status.state == "Pending"
    assert jobs.get()["metadata"]["labels"] == {"team": "vision"}
    job.scale(3)
    job.suspend()
    assert (jobs.get()["spec"]["replicas"], jobs.get()["spec"]["suspend"]) == (3, True)
    job.resume()
    assert jobs.get()["spec"]["suspend"] is False
    again = Job.from_cluster("digits")
    assert again.namespace == jobs.namespace
    assert again.resource.spec.replicas == 3
    assert again.apply().status == job.status
    job.delete(wait=True)
    assert jobs.names() == []


def test_wait_returns_the_status_or_raises_the_reason(jobs: Jobs, end: Callable[..., None]) -> None:
    job = make_job().apply()
    with pytest.raises(WaitTimeoutError, match=r"digits has not ended within 0\.1 s: Pending"):
        job.wait(timeout=0.1)
    end(ConditionType.COMPLETE, Reason.COMPLETED, "all done")
    news: list[str] = []
    status = job.wait(on_news=news.append)
    assert (status.state, status.membership) == ("Complete", MEMBERSHIP)
    assert news == ["Complete: all done (membership 1.1.1)"]
    end(ConditionType.FAILED, Reason.APPLICATION_FAILED, "rank 1 failed")
    with pytest.raises(JobFailedError, match=r"digits failed: .*rank 1 failed") as failure:
        job.wait()
    assert failure.value.reason == "ApplicationFailed"


def test_a_cluster_that_rejects_a_request_gives_the_remedy(jobs: Jobs) -> None:
    with pytest.raises(ClusterError, match=f"there is no job digits in namespace {jobs.namespace}"):
        Job.from_cluster("digits")
    with pytest.raises(ClusterError, match="maxReplicas"):
        make_job(max_replicas=2).apply().scale(9)
    with pytest.raises(
        ClusterError, match=r"metadata\.namespace of digits is one, and --namespace"
    ):
        make_job(namespace="one").apply(namespace="two")
    with pytest.raises(ClusterError, match="there is no kubeconfig at /nowhere"):
        make_job().apply(kubeconfig="/nowhere")


def test_the_page_of_the_api(
    jobs: Jobs, end: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits.yaml").write_text(make_job().to_yaml())
    for name in ("digits", "failed"):
        make_job(name).apply()
    end(ConditionType.COMPLETE, Reason.COMPLETED, "all done")
    end(ConditionType.FAILED, Reason.APPLICATION_FAILED, "rank 1 failed", "failed")
    execute("from ddpjob import Job", *examples("docs/python.md", "On a cluster"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Complete id='1.1.1'")
    assert lines[-2:] == ["100", "ApplicationFailed"]
    assert jobs.names() == ["failed"]
