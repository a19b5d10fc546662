"""A job, defined in a file or by arguments."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob import definition, local_run
from ddpjob.definition import Definition, without_none
from ddpjob.errors import asking_cluster
from ddpjob.run_result import RunResult
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.local.state_dir import JobStateDir

if TYPE_CHECKING:
    from ddpjob.cluster_job import ClusterJob


class Job:
    """A DDPJob that runs on this machine or on a cluster."""

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        image: str | None = None,
        replicas: int = 1,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Define a job; `spec` has the other fields of the spec, in snake_case or in camelCase.

        Raise InvalidJobError with a line for each problem.
        """
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        }
        given = {"command": command, "image": image, "replicas": replicas, **spec}
        self._definition = definition.from_arguments(metadata, given)
        self._remote: ClusterJob | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> Job:
        """Return the only job of a job file; raise InvalidJobError as `ddpjob validate` does."""
        return cls._make(definition.from_file(Path(path)))

    @classmethod
    def from_cluster(
        cls,
        name: str,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> Job:
        """Return a job that exists on a cluster; raise ClusterError if there is none."""
        from ddpjob.cluster_job import ClusterJob  # noqa: PLC0415 - loads the Kubernetes client

        with asking_cluster():
            remote = ClusterJob.connect(name, namespace, context, kubeconfig)
            return cls._make(definition.from_object(remote.read()), remote)

    @classmethod
    def _make(cls, found: Definition, remote: ClusterJob | None = None) -> Job:
        job = cls.__new__(cls)
        job._definition, job._remote = found, remote  # noqa: SLF001 - another constructor
        return job

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._definition.job.metadata.name

    @property
    def namespace(self) -> str | None:
        """Namespace in the definition; None means that of the context, locally `default`."""
        metadata = self._definition.job.metadata
        return metadata.namespace if "namespace" in metadata.model_fields_set else None

    @property
    def resource(self) -> DDPJob:
        """The checked definition, with all defaults."""
        return self._definition.job

    def to_yaml(self) -> str:
        """Return the job as the text of a job file."""
        return self._definition.text

    # --- on this machine --------------------------------------------------------------------------

    def run_local(
        self,
        *,
        chaos: str = "",
        nodes: int | None = None,
        fresh: bool = False,
        state_dir: str | Path | None = None,
        workdir: str | Path | None = None,
        port: int | None = None,
        options: Sequence[str] = (),
        on_line: Callable[[str], object] = print,
    ) -> RunResult:
        """Run the job until it ends, as `ddpjob run --local` does; call `on_line` for each line.

        `options` are further options of that command. An interrupt stops the job; the next call
        resumes it. Raise LocalRunError if the job cannot run.
        """
        root = self._definition.folder / ".ddpjob" if state_dir is None else Path(state_dir)
        given = {"chaos": chaos or None, "nodes": nodes, "port": port, "state-dir": root}
        given["workdir"] = self._definition.folder if workdir is None else workdir
        words = [f"--{option}={value}" for option, value in without_none(given).items()]
        if fresh:
            words.append("--fresh")
        state = JobStateDir(root, self._definition.job.metadata.namespace, self.name)
        return local_run.run(self._definition.text, state, [*words, *options], on_line)

    # --- on a cluster -----------------------------------------------------------------------------

    def apply(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> Job:
        """Create or change the job on a cluster, chosen as kubectl does; return the job."""
        from ddpjob.cluster_job import ClusterJob  # noqa: PLC0415 - loads the Kubernetes client

        with asking_cluster():
            self._remote = ClusterJob.connect_for(
                self._definition.job, namespace, context, kubeconfig
            )
            self._remote.apply(self._definition.text)
        return self

    @property
    def status(self) -> DDPJobStatus:
        """The newest status on the cluster; each access is a request."""
        with asking_cluster():
            return self._connected().status()

    def wait(
        self, timeout: float | None = None, *, on_news: Callable[[str], object] | None = None
    ) -> DDPJobStatus:
        """Wait until the job completes; call `on_news` for each change, as one line of text.

        Raise JobFailedError with the reason if the job fails, and WaitTimeoutError after `timeout`
        seconds.
        """
        seconds = math.inf if timeout is None else timeout
        with asking_cluster():
            return self._connected().wait(seconds, on_news or _ignore)

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        everyone: bool = False,
        worker: str = "",
        tail: int | None = None,
        on_line: Callable[[str], object] = print,
    ) -> None:
        """Call `on_line` for each line of a worker, by default of rank 0.

        `follow` continues until the job ends.
        """
        with asking_cluster():
            self._connected().logs(
                follow=follow,
                rank=rank,
                everyone=everyone,
                worker=worker,
                tail=tail,
                on_line=on_line,
            )

    def scale(self, replicas: int) -> None:
        """Change the number of workers of the main group."""
        with asking_cluster():
            self._connected().scale(replicas)

    def suspend(self) -> None:
        """Stop the workers; the job keeps its snapshots."""
        with asking_cluster():
            self._connected().suspend(True)

    def resume(self) -> None:
        """Start the workers of a suspended job."""
        with asking_cluster():
            self._connected().suspend(False)

    def delete(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Delete the job and its pods; `wait` waits until they are gone."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        with asking_cluster():
            self._connected().delete(deadline if wait else None)

    def _connected(self) -> ClusterJob:
        if self._remote is None:
            from ddpjob.cluster_job import ClusterJob  # noqa: PLC0415 - loads the Kubernetes client

            self._remote = ClusterJob.connect(self.name, self.namespace, None, None)
        return self._remote


def _ignore(news: str) -> None:
    """Do nothing."""
