"""Prints the output of a job's workers: `logs`. Whatever ends the command, the job stays as it is.

An agent restarts the training processes in its pod, so a pod's log contains all of them. A worker
that is replaced is another pod with a higher incarnation: `-f` changes over to that pod.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from ddpjob_operator.api import constants
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api, text
from ddpjob_operator.cli.jobs.access import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Object,
    RejectedError,
    connect,
)

TRAINER = "trainer"
NO_RIGHT = (401, 403)
MOST_LINES = 10_000  # until `-f` looks for new workers


class Line(NamedTuple):
    """A line of a pod's log, or the error that ended it."""

    pod: str
    text: str
    error: CommandError | None = None


def logs(
    name: jobs_api.Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    everyone: Annotated[
        bool, typer.Option("--all", help="Of all workers; each line names its worker.")
    ] = False,
    worker: Annotated[
        str, typer.Option(help="Of this worker, such as worker-001.", show_default="with rank 0")
    ] = "",
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the pod before, if it still exists.")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="The first failure, and the log of its worker.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Last lines of each log.", show_default="all")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print what the workers of a job print."""
    if sum((everyone, bool(worker), failed)) > 1 or (follow and (previous or failed)):
        message = "give one of --all, --worker and --failed; -f excludes --previous and --failed"
        raise CommandError(ExitCode.INVALID, message)
    cluster = connect(namespace, context, kubeconfig)
    job = jobs_api.read(cluster, name)
    query = {} if tail is None else {"tailLines": str(tail)}
    if follow:
        _follow(cluster, job, query, everyone=everyone, worker=worker)
        return
    pods = _workers(jobs_api.read_pods(cluster, name))
    if failed:
        reason, worker = first_failure(job, pods, jobs_api.read_events(cluster, job))
        print(reason, file=sys.stderr)
    chosen = choose(job, pods, everyone=everyone, worker=worker, previous=previous)
    if not chosen:
        raise CommandError(
            ExitCode.REJECTED, _explain_nothing(job, pods, worker, previous=previous)
        )
    for pod in chosen:
        if not _started(pod):
            print(f"{_name(pod)} has not started: {text.pod_state(pod)}", file=sys.stderr)
            continue
        for line in _lines(cluster, pod, query):
            print(_prefixed(name, _name(pod), line, everyone=everyone))


def choose(
    job: Object, pods: Sequence[Object], *, everyone: bool, worker: str, previous: bool = False
) -> list[Object]:
    """Return the pods whose logs are wanted: of each worker the newest, or the one before it."""
    name = str(job["metadata"]["name"])
    groups: dict[str, list[Object]] = {}
    for pod in sorted(pods, key=_incarnation):
        groups.setdefault(_name(pod).rpartition("-")[0], []).append(pod)
    if not everyone:
        wanted = worker or _rank_zero(job) or min(groups, default="")
        full = wanted if wanted.startswith(f"{name}-") else f"{name}-{wanted}"
        exact = [pod for pod in pods if _name(pod) == full]
        if worker and exact and not previous:
            return exact
        groups = {key: found for key, found in groups.items() if key in (full, _group_of(full))}
    place = -2 if previous else -1
    return [found[place] for _, found in sorted(groups.items()) if len(found) >= -place]


def first_failure(job: Object, pods: Sequence[Object], events: Sequence[Object]) -> tuple[str, str]:
    """Return the first failure as text, and the name of its worker; raise CommandError if none."""
    name = job["metadata"]["name"]
    failure = text.conditions(job).get("Failed") or {}
    found = [str(failure["message"])] if failure.get("status") == "True" else []
    found += [e["message"] for e in events if e["reason"] in ("Restarted", "WorkerLost")]
    for each in found:
        for pod in pods:
            if _name(pod) in each:
                return each, _name(pod)
    ended = [(_ended_at(pod), _name(pod)) for pod in pods if _ended_at(pod)]
    if ended:
        return (found or [f"{min(ended)[1]} failed"])[0], min(ended)[1]
    if found:
        return found[0], ""
    raise CommandError(ExitCode.REJECTED, f"no worker of {name} has failed")


def _follow(
    cluster: Cluster, first: Object, query: Mapping[str, str], *, everyone: bool, worker: str
) -> None:
    """Print lines as they arrive until the job has ended and its logs are complete."""
    job: Object | None = first
    namespace, name = first["metadata"]["namespace"], first["metadata"]["name"]
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    readers: dict[str, threading.Thread] = {}  # by UID of the pod
    others: set[str] | None = None  # pods beside the first ones: of these, only new lines
    while job is not None:
        over = False
        try:
            pods = _workers(jobs_api.read_pods(cluster, name))
            here = {str(pod["metadata"]["uid"]) for pod in pods}
            for pod in choose(job, pods, everyone=everyone, worker=worker):
                uid = pod["metadata"]["uid"]
                if uid not in readers and _started(pod):
                    late = others is not None and uid in others and bool(_formed(job))
                    start = {"sinceTime": _formed(job)} if late else query
                    arguments = (cluster, pod, start, lines)
                    readers[uid] = threading.Thread(target=_read, args=arguments, daemon=True)
                    readers[uid].start()
            if others is None and readers:
                others = here - readers.keys()
            reading = any(thread.is_alive() for uid, thread in readers.items() if uid in here)
            over = text.state(job) in text.ENDED and not reading
            job = jobs_api.find(cluster, namespace, name)
        except CommandError as error:
            if not jobs_api.may_pass(error):
                raise
        _print(lines, name, everyone=everyone, wait=not over)
        if over:
            while not lines.empty():
                _print(lines, name, everyone=everyone, wait=False)
            return


def _print(lines: queue.SimpleQueue[Line], job: str, *, everyone: bool, wait: bool) -> None:
    """Print the lines that are there, after a wait for the first one; raise a reader's error."""
    with contextlib.suppress(queue.Empty):
        line = lines.get(timeout=jobs_api.PAUSE_SECONDS) if wait else lines.get_nowait()
        for _ in range(MOST_LINES):
            if line.error is not None:
                raise line.error
            print(_prefixed(job, line.pod, line.text, everyone=everyone), flush=True)
            line = lines.get_nowait()


def _read(
    cluster: Cluster, pod: Object, query: Mapping[str, str], lines: queue.SimpleQueue[Line]
) -> None:
    """Put each line of a pod into the queue until its container has ended."""
    name = _name(pod)
    try:
        for line in _lines(cluster, pod, query, follow=True):
            lines.put(Line(name, line))
    except CommandError as error:
        if isinstance(error, RejectedError) and error.status not in NO_RIGHT:
            return  # the pod is gone
        lines.put(Line(name, "", error))


def _lines(
    cluster: Cluster, pod: Object, query: Mapping[str, str], *, follow: bool = False
) -> Iterator[str]:
    """Yield the lines of a pod; if the connection breaks, read again from the last line."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    fixed = {"container": _container(pod), "timestamps": "true"}
    if follow:
        fixed["follow"] = "true"
    last, equal = "", 0  # stamp of the last line, and the number of lines with this stamp
    pause = threading.Event()
    while True:
        border, again = last, equal  # the server repeats lines up to here
        try:
            for raw in cluster.stream(f"{path}/log", {**fixed, **query}):
                stamp, _, line = raw.decode(errors="replace").partition(" ")
                if stamp < border:
                    continue
                if stamp == border and again:
                    again -= 1
                    continue
                last, equal = stamp, equal + 1 if stamp == last else 1
                yield line
            if not follow or _exit_of(cluster.request("GET", path)) is not None:
                return
        except CommandError as error:
            if not follow or not jobs_api.may_pass(error):
                raise
        query = {"sinceTime": f"{last[:19]}Z"} if last else query
        pause.wait(jobs_api.PAUSE_SECONDS)


# --- parts of pods --------------------------------------------------------------------------------


def _workers(pods: Sequence[Object]) -> list[Object]:
    role = constants.LABEL_ROLE
    return [pod for pod in pods if pod["metadata"]["labels"].get(role) == constants.ROLE_WORKER]


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _group_of(name: str) -> str:
    """Return a worker's name without its incarnation."""
    return name.rpartition("-")[0]


def _incarnation(pod: Object) -> int:
    number = _name(pod).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _rank_zero(job: Object) -> str:
    membership = (job.get("status") or {}).get("membership") or {}
    return str(next(iter(membership.get("workers") or ()), ""))


def _formed(job: Object) -> str:
    return str(((job.get("status") or {}).get("membership") or {}).get("since") or "")


def _container(pod: Object) -> str:
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return TRAINER if TRAINER in names else names[0]


def _container_state(pod: Object) -> Object:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if each["name"] == _container(pod):
            state: Object = each.get("state") or {}
            return state
    return {}


def _started(pod: Object) -> bool:
    return bool(_container_state(pod).keys() & {"running", "terminated"})


def _exit_of(pod: Object) -> int | None:
    ended = _container_state(pod).get("terminated")
    return None if ended is None else int(ended["exitCode"])


def _ended_at(pod: Object) -> str:
    """Return the time when the container of a pod failed, or an empty text."""
    ended = _container_state(pod).get("terminated") or {}
    return str(ended.get("finishedAt") or "") if ended.get("exitCode") else ""


def _prefixed(job: str, pod: str, line: str, *, everyone: bool) -> str:
    return f"[{pod.removeprefix(f'{job}-')}] {line}" if everyone else line


def _explain_nothing(job: Object, pods: Sequence[Object], worker: str, *, previous: bool) -> str:
    name = job["metadata"]["name"]
    if previous:
        return f"no earlier pod of this worker of {name} exists any more; its log is gone with it"
    if pods:
        names = ", ".join(map(_name, pods))
        return f"{name} has no worker {worker or 'with rank 0'} now; it has {names}"
    kept = job["spec"].get("keepPods", "Failed")
    return (
        f"no pods of {name} exist (state {text.state(job)}, keepPods: {kept}), so there are no "
        "logs; keepPods: All keeps the pods of a job that has ended"
    )
