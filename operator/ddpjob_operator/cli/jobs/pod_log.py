"""Reads the log of one pod, over broken connections.

May not: print, or choose a pod.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ddpjob_operator.cli.common import CommandError
from ddpjob_operator.cli.jobs import jobs_api, workers
from ddpjob_operator.cli.jobs.access import Cluster, Object, RejectedError
from ddpjob_operator.cli.jobs.workers import pod_name

NO_RIGHT = (401, 403)


class Line(NamedTuple):
    """A line of a pod's log, or the error that ended it."""

    pod: str
    text: str
    error: CommandError | None = None


LineQueue = queue.SimpleQueue[Line]


class PodLogReader:
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
            for line in read_lines(cluster, pod, query, follow=True):
                if self._stopped:
                    return
                lines.put(Line(name, line))
        except CommandError as error:
            if isinstance(error, RejectedError) and error.status not in NO_RIGHT:
                return  # the pod is gone
            if not self._stopped:
                lines.put(Line(name, "", error))


def read_lines(
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
