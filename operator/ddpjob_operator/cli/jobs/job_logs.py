"""Prints the output of a job's workers: `logs`. Whatever ends the command, the job stays as it is.

An agent restarts the training processes in its pod, so a pod's log contains all of them. torchrun
assigns the ranks again after each restart: `-f` changes over to the worker that has the rank then.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import jobs_api, rows, text, workers
from ddpjob_operator.cli.jobs.access import (
    Cluster,
    Context,
    Kubeconfig,
    Namespace,
    Object,
    connect,
)
from ddpjob_operator.cli.jobs.pod_log import LineQueue, PodLogReader, read_lines
from ddpjob_operator.cli.jobs.workers import Wanted, pod_name
from ddpjob_operator.tracebacks import LogFold

MOST_LINES = 10_000  # until `-f` looks for new workers
SINCE, SIZES = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?"), (3600, 60, 1)
RANKS_SECONDS = 15.0  # until `-f` shows the first worker if the ranks of a membership stay unknown


OnLine = Callable[[str], object]


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
    since: Annotated[
        str, typer.Option(help="Of the last seconds, minutes or hours: 30s, 5m, 2h.")
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="With -f: tracebacks of each change, too.")
    ] = False,
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
    query = _query(tail, since)
    cluster = connect(namespace, context, kubeconfig)
    if failed:
        worker = _print_first_failure(cluster, name)
    wanted = Wanted(everyone, worker, rank)
    if follow:
        show = functools.partial(print, flush=True)
        follow_logs(cluster, name, wanted, query, show, folds=not raw)
    else:
        read_logs(cluster, name, wanted, query, print, previous=previous)


def follow_logs(
    cluster: Cluster,
    name: str,
    wanted: Wanted,
    query: Mapping[str, str],
    on_line: OnLine,
    *,
    folds: bool = False,
) -> None:
    """Call `on_line` for each line as it arrives until the job ends; print notes to stderr.

    `folds` shortens the tracebacks that a change of the workers causes.
    """
    job = jobs_api.read(cluster, name)
    _Follower(cluster, job, query, wanted, on_line, folds=folds).run(job)


def read_logs(
    cluster: Cluster,
    name: str,
    wanted: Wanted,
    query: Mapping[str, str],
    on_line: OnLine,
    *,
    previous: bool = False,
) -> None:
    """Call `on_line` for each line that exists now; print notes to stderr; raise CommandError."""
    job = jobs_api.read(cluster, name)
    pods = workers.workers_of(jobs_api.read_pods(cluster, name))
    if wanted.by_rank and pods and (unknown := workers.explain_rank(job, wanted.rank or 0)):
        if wanted.rank is not None:
            raise CommandError(ExitCode.REJECTED, f"{unknown}. Use --all or --worker")
        print(_fall_back(unknown), file=sys.stderr)
    chosen = workers.choose(job, pods, wanted, previous=previous)
    if not chosen:
        reason = workers.explain_nothing(job, pods, wanted, previous=previous)
        raise CommandError(ExitCode.REJECTED, reason)
    for pod in chosen:
        if not workers.is_started(pod):
            print(f"{pod_name(pod)} has not started: {rows.pod_state(pod)}", file=sys.stderr)
            continue
        for line in read_lines(cluster, pod, query):
            on_line(_prefixed(name, pod_name(pod), line, everyone=wanted.everyone))


def tail_query(tail: int | None) -> dict[str, str]:
    """Return the parameters of a request for the last lines of a log."""
    return {} if tail is None else {"tailLines": str(tail)}


def _query(tail: int | None, since: str) -> dict[str, str]:
    if not since:
        return tail_query(tail)
    parts = found.groups("0") if (found := SINCE.fullmatch(since)) else ()
    seconds = sum(int(part) * size for part, size in zip(parts, SIZES, strict=False))
    if not seconds:
        message = f"--since {since} cannot be read; give for example 30s, 5m, 2h or 1h30m"
        raise CommandError(ExitCode.INVALID, message)
    return {**tail_query(tail), "sinceSeconds": str(seconds)}


def _print_first_failure(cluster: Cluster, name: str) -> str:
    """Print the first failure to stderr, and return its worker; raise CommandError if none."""
    job = jobs_api.read(cluster, name)
    pods = workers.workers_of(jobs_api.read_pods(cluster, name))
    reason, worker = workers.first_failure(job, pods, jobs_api.read_events(cluster, job))
    print(reason, file=sys.stderr)
    return worker


class _Follower:
    """Shows lines as they arrive until the job has ended and its logs are complete."""

    def __init__(
        self,
        cluster: Cluster,
        job: Object,
        query: Mapping[str, str],
        wanted: Wanted,
        on_line: OnLine,
        *,
        folds: bool,
    ) -> None:
        self._cluster, self._query, self._wanted = cluster, query, wanted
        self._on_line = on_line
        self._folds: dict[str, LogFold] | None = {} if folds else None  # by pod
        self._failed: set[str] = set()  # memberships of which a traceback was shown
        self._namespace, self._name = job["metadata"]["namespace"], job["metadata"]["name"]
        self._lines: LineQueue = queue.SimpleQueue()
        self._readers: dict[str, PodLogReader] = {}  # by UID of the pod
        self._old: set[str] | None = None  # pods beside the first ones: of these, only new lines
        self._unknown_since: dict[str, float] = {}  # by membership whose ranks are not known
        self._note = self._news = ""

    def run(self, first: Object) -> None:
        """Show lines until the job has ended."""
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
                for pod, fold in (self._folds or {}).items():
                    self._show(pod, fold.end())
                return

    def _read(self, job: Object, pods: list[Object]) -> bool:
        """Start and stop readers; return whether the job has ended and its logs are complete."""
        here = {str(pod["metadata"]["uid"]): pod for pod in pods}
        if not self._readers and not any(workers.is_started(pod) for pod in pods):
            self._tell(text.news(job))
        chosen = workers.choose(job, pods, self._wanted) if self._is_decided(job) else []
        for pod in chosen:
            uid, since = str(pod["metadata"]["uid"]), workers.formed(job)
            if uid not in self._readers and workers.is_started(pod):
                late = self._old is not None and uid in self._old and bool(since)
                start = {"sinceTime": since} if late else self._query
                self._readers[uid] = PodLogReader(self._cluster, pod, start, self._lines)
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

    def _tell(self, news: str) -> None:
        """Explain on stderr why there is no line yet."""
        if news != self._news:
            self._news = news
            print(f"{self._name} has no logs yet: {news}", file=sys.stderr)

    def _print(self, *, wait: bool) -> None:
        """Show the lines that are there, after a wait for the first; raise a reader's error."""
        lines, is_silent = self._lines, wait
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=jobs_api.PAUSE_SECONDS) if wait else lines.get_nowait()
            is_silent = False
            for _ in range(MOST_LINES):
                if line.error is not None:
                    raise line.error
                self._show(line.pod, self._folded(line.pod, line.text))
                line = lines.get_nowait()
        if is_silent:
            for pod, fold in (self._folds or {}).items():
                self._show(pod, fold.flush())

    def _folded(self, pod: str, line: str) -> list[str]:
        if self._folds is None:
            return [line]
        return self._folds.setdefault(pod, LogFold(self._failed)).feed(line)

    def _show(self, pod: str, lines: list[str]) -> None:
        for line in lines:
            self._on_line(_prefixed(self._name, pod, line, everyone=self._wanted.everyone))


def _fall_back(unknown: str) -> str:
    return f"{unknown}. The log of the first worker follows; --all shows all workers"


def _prefixed(job: str, pod: str, line: str, *, everyone: bool) -> str:
    return f"[{pod.removeprefix(f'{job}-')}] {line}" if everyone else line
