"""Reads and changes DDPJobs, their pods and events through the API server; completes job names.

May not: print, or decide anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from ddpjob_operator.api import constants
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs.access import Cluster, Object, RejectedError, connect

OWNER = {"fieldManager": "ddpjob"}
PAUSE_SECONDS = 1.0  # until a watch that has ended begins again
SHORTEST_SECONDS = 0.001
GONE = 410
COMPLETION_SECONDS = 5.0  # a shell that completes a name waits
KIND_AND_SLASH = re.compile(rf"^(ddp|ddpjobs?)(\.{re.escape(constants.GROUP)})?/")


class Change(StrEnum):
    """A kind of change of a job."""

    SEEN = "SEEN"
    DELETED = "DELETED"


def path_of(namespace: str | None, name: str = "", part: str = "") -> str:
    """Return the path of a job, of a part of it, or of all jobs of one or of all namespaces."""
    within = f"/namespaces/{namespace}" if namespace else ""
    end = "/".join(filter(None, (constants.PLURAL, name, part)))
    return f"/apis/{constants.API_VERSION}{within}/{end}"


def read(cluster: Cluster, name: str) -> Object:
    """Return a job of the command's namespace."""
    job: Object = cluster.request("GET", path_of(cluster.namespace, name))
    return job


def find(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Return a job, or None if there is none."""
    try:
        job: Object = cluster.request("GET", path_of(namespace, name))
    except RejectedError as error:
        if error.status == 404:
            return None
        raise
    return job


def read_all(cluster: Cluster, namespace: str | None, selector: str = "") -> list[Object]:
    """Return the jobs of a namespace, or of all; with a selector, those with these labels."""
    query = {"labelSelector": selector} if selector else {}
    items: list[Object] = cluster.request("GET", path_of(namespace), query=query)["items"]
    return items


def select_names(cluster: Cluster, names: Sequence[str] | None, selector: str) -> list[str]:
    """Return the names of the jobs that names or a selector choose; raise CommandError."""
    if bool(names) == bool(selector):
        message = "give names of jobs, or labels with -l such as `-l team=a`, and not both"
        raise CommandError(ExitCode.INVALID, message)
    if names:
        return list(names)
    found = read_all(cluster, cluster.namespace, selector)
    if not found:
        message = f"no jobs in namespace {cluster.namespace} have the labels {selector}"
        typer.echo(message, err=True)
    return [str(job["metadata"]["name"]) for job in found]


def apply(cluster: Cluster, namespace: str, name: str, text: str) -> Object:
    """Create or change a job so that it has the fields in the text; other fields stay."""
    job: Object = cluster.request(
        "PATCH",
        path_of(namespace, name),
        query={**OWNER, "force": "true", "fieldValidation": "Strict"},
        body=text,
        kind="application/apply-patch+yaml",
    )
    return job


def merge(cluster: Cluster, name: str, change: Object, part: str = "") -> Object:
    """Merge a change into a job, or into a part of it."""
    changed: Object = cluster.request(
        "PATCH",
        path_of(cluster.namespace, name, part),
        query=OWNER,
        body=change,
        kind="application/merge-patch+json",
    )
    return changed


def delete(cluster: Cluster, name: str) -> None:
    """Delete a job; the cluster deletes its pods afterwards."""
    cluster.request(
        "DELETE", path_of(cluster.namespace, name), query={"propagationPolicy": "Background"}
    )


def read_pods(cluster: Cluster, name: str) -> list[Object]:
    """Return the pods of a job, by name."""
    pods = _read_objects(cluster, "Pod", labelSelector=f"{constants.LABEL_JOB}={name}")
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def read_events(cluster: Cluster, job: Object) -> list[Object]:
    """Return the events of this job, not of an earlier one with its name, oldest first."""
    own = f"involvedObject.uid={job['metadata']['uid']}"
    events = _read_objects(cluster, "Event", fieldSelector=own)
    return sorted(events, key=lambda event: int(_version(event)))


def _read_objects(cluster: Cluster, kind: str, **query: str) -> list[Object]:
    """Return objects of a kind of API version v1; the API server omits both in a list."""
    path = f"/api/v1/namespaces/{cluster.namespace}/{kind.lower()}s"
    items: list[Object] = cluster.request("GET", path, query=query)["items"]
    return [{"apiVersion": "v1", "kind": kind, **each} for each in items]


def watch_jobs(
    cluster: Cluster,
    namespace: str | None,
    name: str = "",
    deadline: float = math.inf,
    *,
    selector: str = "",
) -> Iterator[tuple[Change, Object]]:
    """Yield each job, then each change, until a time of the monotonic clock.

    Raise CommandError if the first request fails. Later, watch again until the server answers.
    """
    known: dict[str, Object] = {}
    path, query = path_of(namespace), {"fieldSelector": f"metadata.name={name}"} if name else {}
    query |= {"labelSelector": selector} if selector else {}
    page = cluster.request("GET", path, query=query)
    while True:
        try:
            page = page or cluster.request("GET", path, query=query)
            yield from _differences(known, page)
            start = {**query, "watch": "true", "resourceVersion": _version(page)}
            yield from _changes(cluster, path, start, known, deadline)
        except CommandError as error:
            if not may_pass(error):
                raise
        page = None
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(PAUSE_SECONDS, remaining))


def _differences(known: dict[str, Object], page: Object) -> Iterator[tuple[Change, Object]]:
    """Yield what has changed since the jobs were known, and know it."""
    current = {job["metadata"]["uid"]: job for job in page["items"]}
    for uid in known.keys() - current.keys():
        yield Change.DELETED, known.pop(uid)
    for uid, job in current.items():
        if uid not in known or _version(known[uid]) != _version(job):
            known[uid] = job
            yield Change.SEEN, job


def _changes(
    cluster: Cluster, path: str, query: Mapping[str, str], known: dict[str, Object], deadline: float
) -> Iterator[tuple[Change, Object]]:
    """Yield changes until the server ends the watch, or the deadline has passed."""
    remaining = max(deadline - time.monotonic(), SHORTEST_SECONDS)
    for line in cluster.stream(path, query, None if remaining == math.inf else remaining):
        event = json.loads(line)
        if event["type"] == "ERROR":  # such as an expired version: list again
            return
        job = event["object"]
        known[job["metadata"]["uid"]] = job
        if event["type"] == "DELETED":
            yield Change.DELETED, known.pop(job["metadata"]["uid"])
        else:
            yield Change.SEEN, job
        if time.monotonic() >= deadline:
            return


def may_pass(error: CommandError) -> bool:
    """Return whether a failure may pass by itself, as when an API server restarts."""
    if isinstance(error, RejectedError):
        return error.status == GONE or error.status >= 500
    return error.code is ExitCode.UNREACHABLE


def _version(thing: Object) -> str:
    return str(thing["metadata"]["resourceVersion"])


def complete_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of jobs for a shell's completion; none if the cluster cannot be asked."""
    given = {**(context.parent.params if context.parent else {})}
    given |= {option: value for option, value in context.params.items() if value}
    with contextlib.suppress(CommandError):
        options = (given.get(option) for option in ("namespace", "context", "kubeconfig"))
        cluster = connect(*options)
        cluster.limits = (COMPLETION_SECONDS, COMPLETION_SECONDS)
        names = [str(job["metadata"]["name"]) for job in read_all(cluster, cluster.namespace)]
        return [name for name in names if name.startswith(incomplete)]
    return []


def _bare_name(given: str) -> str:
    """Return a job's name without the kind that `get -o name` and kubectl print before it."""
    return KIND_AND_SLASH.sub("", given)


def _bare_names(given: list[str] | None) -> list[str]:
    return [_bare_name(each) for each in given or ()]


def _argument(text: str, bare: Callable[..., object]) -> Any:
    return typer.Argument(
        help=text, show_default=False, autocompletion=complete_names, callback=bare
    )


Name = Annotated[str, _argument("Name of a job.", _bare_name)]
Names = Annotated[list[str] | None, _argument("Names of jobs.", _bare_names)]
OptionalNames = Annotated[list[str] | None, _argument("Jobs; all by default.", _bare_names)]
OptionalName = Annotated[str, _argument("A job; all by default.", _bare_name)]
Selector = Annotated[
    str,
    typer.Option(
        "--selector", "-l", help="Jobs with these labels, such as team=a.", show_default=False
    ),
]
