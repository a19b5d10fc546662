"""Shows jobs: `get`, `describe`, `events`, `top`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import cells, jobs_api, rows, text
from ddpjob_operator.cli.jobs.access import (
    Context,
    Kubeconfig,
    Namespace,
    Object,
    RejectedError,
    connect,
)


class Output(StrEnum):
    """A form of output."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class DataFormat(StrEnum):
    """A form of output for programs."""

    JSON = "json"
    YAML = "yaml"


OptionalFormat = Annotated[DataFormat | None, typer.Option("--output", "-o", help="Form.")]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")]


def get(
    names: jobs_api.OptionalNames = None,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="Form.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print changes, too.")] = False,
    everywhere: Everywhere = False,
    selector: jobs_api.Selector = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """List jobs, or show those that are named."""
    names = names or []
    _check_choice(names, everywhere=everywhere, selector=selector)
    if watch and len(names) > 1:
        raise CommandError(ExitCode.INVALID, "-w watches one job or all; omit names, or omit -w")
    cluster = connect(namespace, context, kubeconfig)
    where = None if everywhere else cluster.namespace
    table = _JobTable(wide=output is Output.WIDE, everywhere=everywhere)
    if watch:
        for name in names:
            jobs_api.read(cluster, name)  # a watch of an absent job would wait silently
        watched = jobs_api.watch_jobs(cluster, where, "".join(names), selector=selector)
        for change, job in watched:
            if change is jobs_api.Change.SEEN:
                _show([job], output, table, alone=True)
        return
    jobs = [jobs_api.read(cluster, name) for name in names]
    if not names:
        jobs = jobs_api.read_all(cluster, where, selector)
    if not jobs and output in (None, Output.WIDE):
        within = "the cluster" if everywhere else f"namespace {cluster.namespace}"
        typer.echo(f"no jobs{' with these labels' if selector else ''} in {within}", err=True)
        return
    _show(jobs, output, table, alone=len(names) == 1)


def _check_choice(names: list[str], *, everywhere: bool, selector: str) -> None:
    """Raise CommandError if names and an option that chooses jobs exclude each other."""
    given = " and ".join(names)
    if names and everywhere:
        message = f"-A shows the jobs of all namespaces, not only {given}; use -n NAMESPACE"
        raise CommandError(ExitCode.INVALID, message)
    if names and selector:
        message = f"-l chooses jobs by their labels, not only {given}; omit -l, or the names"
        raise CommandError(ExitCode.INVALID, message)


def describe(
    name: jobs_api.Name,
    output: OptionalFormat = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show state, problems, history, pods and events of a job."""
    cluster = connect(namespace, context, kubeconfig)
    job = jobs_api.read(cluster, name)
    pods = _unless_forbidden(lambda: jobs_api.read_pods(cluster, name))
    events = _unless_forbidden(lambda: jobs_api.read_events(cluster, job))
    if output:
        _print_data({"job": _plain(job), "pods": _plain(pods), "events": _plain(events)}, output)
        return
    for line in text.describe(job, pods, events, datetime.now(UTC)):
        print(line)


def events(
    name: jobs_api.Name,
    output: OptionalFormat = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the events of a job, oldest first."""
    cluster = connect(namespace, context, kubeconfig)
    found = jobs_api.read_events(cluster, jobs_api.read(cluster, name))
    if output:
        _print_data(_list_of(found), output)
        return
    now = datetime.now(UTC)
    if not found:
        typer.echo(f"no events of {name}; the cluster keeps them for an hour or so", err=True)
        return
    for line in cells.Table(*rows.EVENT_HEADS).lines(rows.event_row(each, now) for each in found):
        print(line)


def top(
    name: jobs_api.OptionalName = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print each change, too.")] = False,
    output: OptionalFormat = None,
    everywhere: Everywhere = False,
    selector: jobs_api.Selector = "",
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the progress of jobs, with rate and expected end."""
    _check_choice([name] if name else [], everywhere=everywhere, selector=selector)
    if watch and output:
        raise CommandError(ExitCode.INVALID, "-w prints lines of a table; omit -o, or omit -w")
    cluster = connect(namespace, context, kubeconfig)
    where = None if everywhere else cluster.namespace
    table = _JobTable(top=True, everywhere=everywhere)
    if not watch:
        named = [jobs_api.read(cluster, name)] if name else None
        jobs = jobs_api.read_all(cluster, where, selector) if named is None else named
        if output:
            _print_data([text.top_data(job, datetime.now(UTC)) for job in jobs], output)
            return
        table.show(jobs)
        return
    if name:
        jobs_api.read(cluster, name)
    for change, job in jobs_api.watch_jobs(cluster, where, name, selector=selector):
        if change is jobs_api.Change.SEEN:
            table.show([job])


def _unless_forbidden(read: Callable[[], list[Object]]) -> list[Object] | str:
    """Return the objects, or the reason why this user may not see them."""
    try:
        return read()
    except RejectedError as error:
        if error.status == 403:
            return str(error)
        raise


class _JobTable:
    """The table of `get`, or of `top`."""

    def __init__(self, *, everywhere: bool, wide: bool = False, top: bool = False) -> None:
        self._wide, self._top, self._everywhere = wide, top, everywhere
        first = ("NAMESPACE",) if everywhere else ()
        heads = text.TOP_HEADS if top else (*text.HEADS, *(text.WIDE if wide else ()))
        self._table = cells.Table(*first, *heads)

    def show(self, jobs: list[Object]) -> None:
        now = datetime.now(UTC)
        for line in self._table.lines(self._row(job, now) for job in jobs):
            print(line, flush=True)

    def _row(self, job: Object, now: datetime) -> tuple[str, ...]:
        first = (job["metadata"]["namespace"],) if self._everywhere else ()
        row = text.top_row(job, now) if self._top else text.job_row(job, now, wide=self._wide)
        return (*first, *row)


def _show(jobs: list[Object], output: Output | None, table: _JobTable, *, alone: bool) -> None:
    match output:
        case Output.JSON | Output.YAML:
            whole = _plain(jobs[0]) if alone else _list_of(jobs)
            _print_data(whole, DataFormat(output.value))
        case Output.NAME:
            for job in jobs:
                print(f"ddpjob.ddpjob.io/{job['metadata']['name']}", flush=True)
        case _:
            table.show(jobs)


def _print_data(data: Any, output: DataFormat) -> None:
    if output is DataFormat.JSON:
        print(json.dumps(data, indent=2), flush=True)
    else:
        print(yaml.safe_dump(data, sort_keys=False, explicit_start=True).rstrip(), flush=True)


def _list_of(objects: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": _plain(objects)}


def _plain(found: Any) -> Any:
    """Return objects without managed fields; a text stays a text."""
    if isinstance(found, list):
        return [_plain(each) for each in found]
    if isinstance(found, dict):
        found["metadata"].pop("managedFields", None)
    return found
