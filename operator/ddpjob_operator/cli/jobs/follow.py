"""Follows a job: `wait`. Whatever ends the command, the job stays as it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode, JobEndedError
from ddpjob_operator.cli.jobs import jobs_api, text
from ddpjob_operator.cli.jobs.access import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Object,
    connect,
)


class State(StrEnum):
    """A state for which `wait` waits."""

    COMPLETE = "Complete"
    RUNNING = "Running"


def wait(
    name: jobs_api.Name,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait.", show_default="no limit")
    ] = math.inf,
    state: Annotated[
        State, typer.Option("--for", help="Running: or until the job trains.")
    ] = State.COMPLETE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print changes of a job until it ends."""
    cluster = connect(namespace, context, kubeconfig)

    def show(news: str) -> None:
        if not quiet:
            print(f"{datetime.now().astimezone():%H:%M:%S} {news}", flush=True)

    wait_for_end(cluster, name, timeout, show, state)


def wait_for_end(
    cluster: Cluster,
    name: str,
    timeout: float,
    on_news: Callable[[str], object],
    state: State = State.COMPLETE,
) -> Object:
    """Return a job when it has this state, or has completed; call `on_news` for each change.

    Raise JobEndedError if it failed or was deleted, and CommandError after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    uid, shown = jobs_api.read(cluster, name)["metadata"]["uid"], ""
    for change, job in jobs_api.watch_jobs(cluster, cluster.namespace, name, deadline):
        if change is jobs_api.Change.DELETED and job["metadata"]["uid"] == uid:
            raise JobEndedError(f"{name} was deleted before it ended", "Deleted")
        if text.state(job) == "Failed":
            explanation = text.explanation(job)
            message = f"{name} failed: {explanation}\nlogs: ddpjob logs {name} --failed"
            raise JobEndedError(message, text.conditions(job)["Failed"]["reason"])
        news = text.news(job)
        if news != shown:
            on_news(news)
        shown = news
        if text.state(job) in (State.COMPLETE, state):
            return job
    what = "ended" if state is State.COMPLETE else "begun to train"
    message = f"{name} has not {what} within {timeout:g} s: {shown}. It continues; wait again"
    raise CommandError(ExitCode.TIMEOUT, message)
