"""Prints the output of a job's workers: `logs`. Whatever ends the command, the job stays as it is.

An agent restarts the training processes in its pod, so a pod's log contains all of them. torchrun
assigns the ranks again after each restart: `-f` changes over to the worker that has the rank then.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api, text, workers
from ddpjob_operator.cli.jobs.access import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Object,
    RejectedError,
    connect,
)
from ddpjob_operator.cli.jobs.workers import Wanted, pod_name

NO_RIGHT = (401, 403)
MOST_LINES = 10_000  # until `-f` looks for new workers
RANKS_SECONDS = 15.0  # until `-f` shows the first worker if the ranks of a membership stay unknown


class Line(NamedTuple):
    """A line of a pod's log, or the error that ended it."""

    pod: str
    text: str
    error: CommandError | None = None


LineQueue = queue.SimpleQueue[Line]


def logs(
    name: jobs_api.Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until the job ends.")] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Of the worker that runs it.", show_default="0")
    ] = None,
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
    chosen_by = (everyone, bool(worker), failed, rank is not None)
    if sum(chosen_by) > 1 or (follow and (previous or failed)):
        message = (
            "give one of --all, --worker, --rank and --failed; -f excludes --previous and --failed"
        )
        raise CommandError(ExitCode.INVALID, message)
    cluster = connect(namespace, context, kubeconfig)
    job = jobs_api.read(cluster, name)
    query = {} if tail is None else {"tailLines": str(tail)}
    wanted = Wanted(everyone, worker, rank)
    if follow:
        _Follower(cluster, job, query, wanted).run(job)
        return
    pods = workers.workers_of(jobs_api.read_pods(cluster, name))
    if failed:
        reason, worker = workers.first_failure(job, pods, jobs_api.read_events(cluster, job))
        print(reason, file=sys.stderr)
        wanted = Wanted(worker=worker)
    if wanted.by_rank and pods and (unknown := workers.explain_rank(job, rank or 0)):
        if rank is not None:
            raise CommandError(ExitCode.REJECTED, f"{unknown}. Use --all or --worker")
        print(_fall_back(unknown), file=sys.stderr)
    chosen = workers.choose(job, pods, wanted, previous=previous)
    if not chosen:
        reason = workers.explain_nothing(job, pods, wanted, previous=previous)
        raise CommandError(ExitCode.REJECTED, reason)
    for pod in chosen:
        if not workers.is_started(pod):
            print(f"{pod_name(pod)} has not started: {text.pod_state(pod)}", file=sys.stderr)
            continue
        for line in _lines(cluster, pod, query):
            print(_prefixed(name, pod_name(pod), line, everyone=everyone))


class _Reader:
    """A thread that reads the log of one pod until its container has ended, or `stop`."""

    def __init__(
        self, cluster: Cluster, pod: Object, query: Mapping[str, str], lines: LineQueue
    ) -> None:
        self.group = workers.worker_group(pod)
        self._stopped = False
        arguments = (cluster, pod, query, lines)
        self._thread = threading.Thread(target=self._read, args=arguments, daemon=True)
        self._thread.start()

    @property
    def reads(self) -> bool:
        """True until the log has ended."""
        return self._thread.is_alive() and not self._stopped

    def stop(self) -> None:
        """Drop the lines that arrive from now on."""
        self._stopped = True

    def _read(
        self, cluster: Cluster, pod: Object, query: Mapping[str, str], lines: LineQueue
    ) -> None:
        name = pod_name(pod)
        try:
            for line in _lines(cluster, pod, query, follow=True):
                if self._stopped:
                    return
                lines.put(Line(name, line))
        except CommandError as error:
            if isinstance(error, RejectedError) and error.status not in NO_RIGHT:
                return  # the pod is gone
            if not self._stopped:
                lines.put(Line(name, "", error))


class _Follower:
    """Prints lines as they arrive until the job has ended and its logs are complete."""

    def __init__(
        self, cluster: Cluster, job: Object, query: Mapping[str, str], wanted: Wanted
    ) -> None:
        self._cluster, self._query, self._wanted = cluster, query, wanted
        self._namespace, self._name = job["metadata"]["namespace"], job["metadata"]["name"]
        self._lines: LineQueue = queue.SimpleQueue()
        self._readers: dict[str, _Reader] = {}  # by UID of the pod
        self._old: set[str] | None = None  # pods beside the first ones: of these, only new lines
        self._unknown_since: dict[str, float] = {}  # by membership whose ranks are not known
        self._note = ""

    def run(self, first: Object) -> None:
        """Print until the job has ended."""
        job: Object | None = first
        while job is not None:
            over = False
            try:
                pods = workers.workers_of(jobs_api.read_pods(self._cluster, self._name))
                over = self._read(job, pods)
                job = jobs_api.find(self._cluster, self._namespace, self._name)
            except CommandError as error:
                if not jobs_api.may_pass(error):
                    raise
            self._print(wait=not over)
            if over:
                while not self._lines.empty():
                    self._print(wait=False)
                return

    def _read(self, job: Object, pods: list[Object]) -> bool:
        """Start and stop readers; return whether the job has ended and its logs are complete."""
        here = {str(pod["metadata"]["uid"]): pod for pod in pods}
        chosen = workers.choose(job, pods, self._wanted) if self._is_decided(job) else []
        for pod in chosen:
            uid, since = str(pod["metadata"]["uid"]), workers.formed(job)
            if uid not in self._readers and workers.is_started(pod):
                late = self._old is not None and uid in self._old and bool(since)
                start = {"sinceTime": since} if late else self._query
                self._readers[uid] = _Reader(self._cluster, pod, start, self._lines)
        if self._old is None and self._readers:
            self._old = here.keys() - self._readers.keys()
        if chosen and self._wanted.by_rank:
            stopped = self._stop_others({workers.worker_group(pod) for pod in chosen}, here)
            self._old = (self._old or set()) | stopped if stopped else self._old
        reading = any(reader.reads for uid, reader in self._readers.items() if uid in here)
        return text.state(job) in text.ENDED and not reading

    def _stop_others(self, groups: set[str], here: Mapping[str, Object]) -> set[str]:
        """Stop the readers of workers that run, but no longer have the rank; return their pods."""
        stopped = set()
        for uid, reader in list(self._readers.items()):
            runs = uid in here and workers.exit_of(here[uid]) is None
            if runs and reader.group not in groups:
                reader.stop()
                del self._readers[uid]
                stopped.add(uid)
        return stopped

    def _is_decided(self, job: Object) -> bool:
        """Return whether a worker can be chosen; explain on stderr if it is not the wanted one."""
        wanted, unknown = self._wanted, ""
        if wanted.by_rank:
            unknown = workers.explain_rank(job, wanted.rank or 0)
        if not unknown:
            self._note = ""
            return True
        now = time.monotonic()
        since = self._unknown_since.setdefault(workers.membership_id(job), now)
        if now - since < RANKS_SECONDS and text.state(job) not in text.ENDED:
            return False
        note = unknown if wanted.rank is not None else _fall_back(unknown)
        if note != self._note:
            self._note = note
            print(note, file=sys.stderr)
        return wanted.rank is None

    def _print(self, *, wait: bool) -> None:
        """Print the lines that are there, after a wait for the first; raise a reader's error."""
        lines, everyone = self._lines, self._wanted.everyone
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=jobs_api.PAUSE_SECONDS) if wait else lines.get_nowait()
            for _ in range(MOST_LINES):
                if line.error is not None:
                    raise line.error
                print(_prefixed(self._name, line.pod, line.text, everyone=everyone), flush=True)
                line = lines.get_nowait()


def _lines(
    cluster: Cluster, pod: Object, query: Mapping[str, str], *, follow: bool = False
) -> Iterator[str]:
    """Yield the lines of a pod; if the connection breaks, read again from the last line."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    fixed = {"container": workers.container(pod), "timestamps": "true"}
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
            if not follow or workers.exit_of(cluster.request("GET", path)) is not None:
                return
        except CommandError as error:
            if not follow or not jobs_api.may_pass(error):
                raise
        query = {"sinceTime": f"{last[:19]}Z"} if last else query
        pause.wait(jobs_api.PAUSE_SECONDS)


def _fall_back(unknown: str) -> str:
    return f"{unknown}. The log of the first worker follows; --all shows all workers"


def _prefixed(job: str, pod: str, line: str, *, everyone: bool) -> str:
    return f"[{pod.removeprefix(f'{job}-')}] {line}" if everyone else line
