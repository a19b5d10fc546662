"""Shows jobs: `get`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
import yaml

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api, text
from ddpjob_operator.cli.jobs.access import Context, Kubeconfig, Namespace, Object, connect

Name = Annotated[str, typer.Argument(help="Name of a job.", show_default=False)]


class Output(StrEnum):
    """A form of output."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def get(
    name: Annotated[str, typer.Argument(help="A job; all by default.", show_default=False)] = "",
    output: Annotated[Output | None, typer.Option("--output", "-o", help="Form.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print changes, too.")] = False,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs, or show one."""
    if name and everywhere:
        message = f"-A shows the jobs of all namespaces, and {name} is one job; use -n NAMESPACE"
        raise CommandError(ExitCode.INVALID, message)
    cluster = connect(namespace, context, kubeconfig)
    where = None if everywhere else cluster.namespace
    table = _JobTable(wide=output is Output.WIDE, everywhere=everywhere)
    if watch:
        if name:
            jobs_api.read(cluster, name)  # a watch of an absent job would wait silently
        for change, job in jobs_api.watch_jobs(cluster, where, name):
            if change is jobs_api.Change.SEEN:
                _show([job], output, table, alone=True)
        return
    jobs = [jobs_api.read(cluster, name)] if name else jobs_api.read_all(cluster, where)
    if not jobs and output in (None, Output.WIDE):
        within = "the cluster" if everywhere else f"namespace {cluster.namespace}"
        typer.echo(f"no jobs in {within}", err=True)
        return
    _show(jobs, output, table, alone=bool(name))


class _JobTable:
    """The table of `get`."""

    def __init__(self, *, wide: bool, everywhere: bool) -> None:
        self._wide, self._everywhere = wide, everywhere
        first = ("NAMESPACE",) if everywhere else ()
        self._table = text.Table(*first, *text.HEADS, *(text.WIDE if wide else ()))

    def show(self, jobs: list[Object]) -> None:
        now = datetime.now(UTC)
        for line in self._table.lines(self._row(job, now) for job in jobs):
            print(line, flush=True)

    def _row(self, job: Object, now: datetime) -> tuple[str, ...]:
        first = (job["metadata"]["namespace"],) if self._everywhere else ()
        return (*first, *text.job_row(job, now, wide=self._wide))


def _show(jobs: list[Object], output: Output | None, table: _JobTable, *, alone: bool) -> None:
    for job in jobs:
        job["metadata"].pop("managedFields", None)
    whole = jobs[0] if alone else {"apiVersion": "v1", "kind": "List", "items": jobs}
    match output:
        case Output.JSON:
            print(json.dumps(whole, indent=2), flush=True)
        case Output.YAML:
            print(yaml.safe_dump(whole, sort_keys=False, explicit_start=True).rstrip(), flush=True)
        case Output.NAME:
            for job in jobs:
                print(f"ddpjob.ddpjob.io/{job['metadata']['name']}", flush=True)
        case _:
            table.show(jobs)
