"""Runs the test pods, and deletes them whatever happens."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType

from ddpjob_operator.cli.common import CommandError
from ddpjob_operator.cli.doctor import probe_pods
from ddpjob_operator.cli.doctor.observed import Finding, Object, State
from ddpjob_operator.cli.jobs import jobs_api
from ddpjob_operator.cli.jobs.access import Cluster, RejectedError

PENDING_SECONDS = 30.0  # until a pod for which there is no node counts as such
TERMINATED = 143
NO_NODE = "free a node, or tolerate the taints of more nodes"


class Probes:
    """The test pods of one run of the command."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._path = f"/api/v1/namespaces/{cluster.namespace}/pods"
        self._names: list[str] = []

    def check_image(self, image: str) -> Finding:
        """Return whether a pod can pull an image and start python3 in it."""
        pod = self._create(lambda name: probe_pods.build_image_pod(name, image), "image")
        if isinstance(pod, Finding):
            return pod
        return self._wait(pod, "image", lambda found: probe_pods.judge_image(found, image))

    def check_reach(self, image: str) -> Finding:
        """Return whether two pods on different nodes reach each other."""
        first = self._create(lambda name: probe_pods.build_first_pod(name, image), "reach")
        if isinstance(first, Finding):
            return first
        started: list[Object] = []

        def judge_first(pod: Object) -> Finding | None:
            if probe_pods.is_running(pod):
                started.append(pod)
                return Finding("reach", State.OK, "the first pod runs")
            failed = probe_pods.exit_of(pod) is not None
            message = f"the first test pod has ended: {probe_pods.message_of(pod)}"
            ended = Finding("reach", State.FAIL, message) if failed else None
            return probe_pods.judge_start(pod, image, "reach") or ended

        found = self._wait(first, "reach", judge_first)
        if not started:
            return found
        running = started[0]
        running["metadata"]["labels"] = first["metadata"]["labels"]
        build = probe_pods.build_second_pod
        second = self._create(lambda name: build(name, image, running), "reach")
        if isinstance(second, Finding):
            return second
        return self._wait(
            second,
            "reach",
            lambda pod: probe_pods.judge_reach(running, pod, image),
            no_node=State.WARN,
        )

    def delete(self) -> None:
        """Delete all test pods; name those that could not be deleted."""
        for name in self._names:
            try:
                query = {"gracePeriodSeconds": "0"}
                self._cluster.request("DELETE", f"{self._path}/{name}", query=query)
            except CommandError as error:
                if isinstance(error, RejectedError) and error.status == 404:
                    continue
                namespace = self._cluster.namespace
                remedy = f"delete it: kubectl -n {namespace} delete pod {name}"
                print(f"the test pod {name} is still there: {error}. {remedy}", file=sys.stderr)

    def _create(self, build: Callable[[str], Object], check: str) -> Object | Finding:
        name = f"ddpjob-doctor-{uuid.uuid4().hex[:8]}"
        pod = build(name)
        self._names.append(name)
        print(f"starting pod {self._cluster.namespace}/{name}", file=sys.stderr)
        try:
            self._cluster.request("POST", self._path, body=pod)
        except RejectedError as error:
            message = f"the test pod was rejected: {error}"
            return Finding(check, State.FAIL, message, "use a namespace where you may create pods")
        return pod

    def _wait(
        self,
        pod: Object,
        check: str,
        judge: Callable[[Object], Finding | None],
        no_node: State = State.FAIL,
    ) -> Finding:
        """Return the finding, or one that explains why there is none in time."""
        name, start = pod["metadata"]["name"], time.monotonic()
        while True:
            found: Object = self._cluster.request("GET", f"{self._path}/{name}")
            if finding := judge(found):
                return finding
            waited, pending = time.monotonic() - start, probe_pods.explain_pending(found)
            if pending and waited > min(PENDING_SECONDS, self._seconds):
                message = f"no node for the test pod {name}: {pending}"
                return Finding(check, no_node, message, NO_NODE)
            if waited > self._seconds:
                phase = (found.get("status") or {}).get("phase") or "Pending"
                message = f"the test pod {name} is {phase} after {self._seconds:g} s"
                return Finding(check, State.FAIL, message, "repeat with a longer --timeout")
            time.sleep(jobs_api.PAUSE_SECONDS)


@contextlib.contextmanager
def probing(cluster: Cluster, seconds: float) -> Iterator[Probes]:
    """Delete the test pods at the end, also after Ctrl-C and SIGTERM."""

    def end(_number: int, _frame: FrameType | None) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    probes = Probes(cluster, seconds)
    try:
        yield probes
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the deletion
        probes.delete()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, before)
