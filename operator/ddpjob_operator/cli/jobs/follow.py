"""Follows a job: `wait`. Whatever ends the command, the job stays as it is."""

from __future__ import annotations

import math
import time
from datetime import datetime
from typing import Annotated

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api, text
from ddpjob_operator.cli.jobs.access import Context, Kubeconfig, Namespace, connect


def wait(
    name: jobs_api.Name,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait.", show_default="no limit")
    ] = math.inf,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print changes of a job until it ends."""
    deadline = time.monotonic() + timeout
    cluster = connect(namespace, context, kubeconfig)
    uid, shown = jobs_api.read(cluster, name)["metadata"]["uid"], ""
    for change, job in jobs_api.watch_jobs(cluster, cluster.namespace, name, deadline):
        if change is jobs_api.Change.DELETED and job["metadata"]["uid"] == uid:
            raise CommandError(ExitCode.JOB_FAILED, f"{name} was deleted before it ended")
        news = text.news(job)
        if news != shown and not quiet:
            print(f"{datetime.now().astimezone():%H:%M:%S} {news}", flush=True)
        shown = news
        if text.state(job) == "Complete":
            return
        if text.state(job) == "Failed":
            explanation = text.explanation(job)
            message = f"{name} failed: {explanation}\nlogs: ddpjob logs {name} --failed"
            raise CommandError(ExitCode.JOB_FAILED, message)
    message = f"{name} has not ended within {timeout:g} s: {shown}. It continues; wait again"
    raise CommandError(ExitCode.TIMEOUT, message)
