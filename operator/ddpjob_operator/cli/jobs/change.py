"""Changes jobs: `apply`, `scale`, `suspend`, `resume`, `delete`."""

from __future__ import annotations

import math
import time
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import typer

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.files import job_files
from ddpjob_operator.cli.jobs import jobs_api
from ddpjob_operator.cli.jobs.access import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Object,
    RejectedError,
    connect,
)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]


def apply(
    files: Annotated[
        list[Path],
        typer.Option("--filename", "-f", help="A job file, or - for stdin; may be repeated."),
    ],
    quiet: Quiet = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Create or change the jobs in files, after a check of all of them."""
    found = [each for file in files for each in job_files.load_all(file)]
    cluster = connect(namespace, context, kubeconfig)
    placed = [(choose_namespace(each.job, namespace) or cluster.namespace, each) for each in found]
    for where, (job, text) in placed:
        name = job.metadata.name
        before = jobs_api.find(cluster, where, name)
        after = jobs_api.apply(cluster, where, name, text)
        _report(name, _verb(before, after), quiet=quiet)


def scale(
    name: jobs_api.Name,
    number: Annotated[
        int | None, typer.Argument(min=0, help="Workers of the main group.", show_default=False)
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=0, help="The same, as for kubectl.", show_default=False)
    ] = None,
    quiet: Quiet = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change the number of workers of the main group."""
    wanted = [each for each in (number, replicas) if each is not None]
    if len(wanted) != 1:
        message = f"give the number of workers once, for example `ddpjob scale {name} 4`"
        raise CommandError(ExitCode.INVALID, message)
    cluster = connect(namespace, context, kubeconfig)
    scale_job(cluster, name, wanted[0])
    _report(name, f"scaled to {wanted[0]}", quiet=quiet)


def suspend(
    names: jobs_api.Names = None,
    selector: jobs_api.Selector = "",
    quiet: Quiet = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Stop the workers of jobs; the jobs keep their snapshots."""
    cluster = connect(namespace, context, kubeconfig)
    for name in jobs_api.select_names(cluster, names, selector):
        suspend_job(cluster, name, True)
        _report(name, "suspended", quiet=quiet)


def resume(
    names: jobs_api.Names = None,
    selector: jobs_api.Selector = "",
    quiet: Quiet = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Start suspended jobs again."""
    cluster = connect(namespace, context, kubeconfig)
    for name in jobs_api.select_names(cluster, names, selector):
        job = suspend_job(cluster, name, False)
        _report(name, "resumed", quiet=quiet)
        if _has_no_workers(job):
            typer.echo(f"{name} has no workers; give it some: ddpjob scale {name} N", err=True)


def delete(
    names: jobs_api.Names = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("--filename", "-f", help="The jobs of a file, or - for stdin."),
    ] = None,
    selector: jobs_api.Selector = "",
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="Skip absent jobs.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the jobs and their pods are gone.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait.", show_default="no limit")
    ] = math.inf,
    quiet: Quiet = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete jobs and their pods."""
    found = [each.job for file in files or () for each in job_files.load_all(file)]
    cluster = connect(namespace, context, kubeconfig)
    own = cluster.namespace
    chosen = [(choose_namespace(job, namespace) or own, job.metadata.name) for job in found]
    if names or selector or not found:
        chosen += [(own, name) for name in jobs_api.select_names(cluster, names, selector)]
    deadline = time.monotonic() + timeout
    for there, name in chosen:
        cluster.namespace = there
        try:
            jobs_api.delete(cluster, name)
        except RejectedError as error:
            if error.status != HTTPStatus.NOT_FOUND or not ignore_not_found:
                raise
            continue
        _report(name, "deleted", quiet=quiet)
    for there, name in chosen if wait else ():
        cluster.namespace = there
        wait_until_gone(cluster, name, deadline)


# --- for commands and the Python API --------------------------------------------------------------


def scale_job(cluster: Cluster, name: str, replicas: int) -> Object:
    """Set the number of workers of the main group, and return the scale."""
    return jobs_api.merge(cluster, name, {"spec": {"replicas": replicas}}, "scale")


def suspend_job(cluster: Cluster, name: str, suspended: bool) -> Object:
    """Suspend or resume a job, and return the job."""
    return jobs_api.merge(cluster, name, {"spec": {"suspend": suspended}})


def choose_namespace(job: DDPJob, given: str | None) -> str | None:
    """Return the namespace of a definition, or the given one; raise CommandError if they differ."""
    metadata = job.metadata
    own = metadata.namespace if "namespace" in metadata.model_fields_set else None
    if own is not None and given is not None and own != given:
        message = (
            f"metadata.namespace of {metadata.name} is {own}, and --namespace is {given}; "
            "remove one of them"
        )
        raise CommandError(ExitCode.INVALID, message)
    return own or given


def wait_until_gone(cluster: Cluster, name: str, deadline: float) -> None:
    """Wait until a job and its pods are gone; raise CommandError after the deadline."""
    while jobs_api.find(cluster, cluster.namespace, name) or jobs_api.read_pods(cluster, name):
        if time.monotonic() >= deadline:
            message = f"{name} is not gone within the timeout; its pods may still be ending"
            raise CommandError(ExitCode.TIMEOUT, message)
        time.sleep(jobs_api.PAUSE_SECONDS)


def _verb(before: Object | None, after: Object) -> str:
    if before is None:
        return "created"
    return "unchanged" if _wanted(before) == _wanted(after) else "configured"


def _wanted(job: Object) -> tuple[Object | None, ...]:
    metadata = job["metadata"]
    return job["spec"], metadata.get("labels"), metadata.get("annotations")


def _has_no_workers(job: Object) -> bool:
    groups = [job["spec"], *job["spec"].get("extraWorkerGroups", ())]
    return not any(group.get("replicas", 1) for group in groups)


def _report(name: str, what: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"ddpjob/{name} {what}")
