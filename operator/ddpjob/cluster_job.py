"""A job on a cluster, by the functions of the commands. Each method raises CommandError.

May not: hold policy.
"""

from __future__ import annotations

from collections.abc import Callable

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.cli.jobs import change, follow, job_logs, jobs_api
from ddpjob_operator.cli.jobs.access import Cluster, Object, connect
from ddpjob_operator.cli.jobs.workers import Wanted


class ClusterJob:
    """A name in a namespace of a cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    @classmethod
    def connect(
        cls, name: str, namespace: str | None, context: str | None, kubeconfig: str | None
    ) -> ClusterJob:
        """Read the kubeconfig, as kubectl does."""
        return cls(connect(namespace, context, kubeconfig), name)

    @classmethod
    def connect_for(
        cls, job: DDPJob, namespace: str | None, context: str | None, kubeconfig: str | None
    ) -> ClusterJob:
        """Read the kubeconfig; the namespace in the definition must not differ from the given."""
        chosen = change.choose_namespace(job, namespace)
        return cls.connect(job.metadata.name, chosen, context, kubeconfig)

    def apply(self, text: str) -> None:
        """Create or change the job."""
        jobs_api.apply(self._cluster, self._cluster.namespace, self._name, text)

    def read(self) -> Object:
        """Return the object on the cluster."""
        return jobs_api.read(self._cluster, self._name)

    def status(self) -> DDPJobStatus:
        """Return the newest status."""
        return DDPJobStatus.model_validate(self.read().get("status") or {}, by_name=False)

    def wait(self, timeout: float, on_news: Callable[[str], object]) -> DDPJobStatus:
        """Wait until the job completes."""
        found = follow.wait_for_end(self._cluster, self._name, timeout, on_news)
        return DDPJobStatus.model_validate(found["status"], by_name=False)

    def logs(
        self,
        *,
        follow: bool,
        rank: int | None,
        everyone: bool,
        worker: str,
        tail: int | None,
        on_line: Callable[[str], object],
    ) -> None:
        """Call `on_line` for each line of the chosen workers."""
        show = job_logs.follow_logs if follow else job_logs.read_logs
        wanted = Wanted(everyone, worker, rank)
        show(self._cluster, self._name, wanted, job_logs.tail_query(tail), on_line)

    def scale(self, replicas: int) -> None:
        """Change the number of workers of the main group."""
        change.scale_job(self._cluster, self._name, replicas)

    def suspend(self, suspended: bool) -> None:
        """Suspend or resume the job."""
        change.suspend_job(self._cluster, self._name, suspended)

    def delete(self, deadline: float | None) -> None:
        """Delete the job; with a deadline, wait until its pods are gone."""
        jobs_api.delete(self._cluster, self._name)
        if deadline is not None:
            change.wait_until_gone(self._cluster, self._name, deadline)
