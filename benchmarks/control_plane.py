"""The operator with many jobs and with large ones, on a real API server.

The operator is the real process, and so are kube-apiserver and etcd. Nodes and rendezvous services
are one process that acts for all of them (`workloads/pretended_nodes.py`): pods run at once, and the
services answer with the real HTTP API. When a pod was created is read from the API server's audit
log. CPU time, memory and the longest callback are those of the operator alone.

    SIZES="200x3 1x1000" make bench-control-plane
    QUICK=1 make bench-control-plane      10 jobs of 3 workers
    .venv/bin/python benchmarks/control_plane.py --markdown    the last results for docs/benchmarks.md
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # for `cluster`
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import Figure, is_set, machine, versions
from benchmarks.show import hand_in, print_if_asked

from cluster.control_plane import ControlPlane, control_plane
from ddpjob_operator.local.simulated.rendezvous_process import free_port

ROOT = Path(__file__).resolve().parent
RESULT = ROOT / "results" / "control_plane.json"
CRD = ROOT.parent / "crds" / "ddpjobs.yaml"
OPERATOR, NODES = (
    ROOT / "workloads" / f"{name}.py" for name in ("operator_in_pod", "pretended_nodes")
)
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACE, ALL_JOBS = "bench", "/apis/ddpjob.io/v1alpha1/ddpjobs"
JOBS = f"/apis/ddpjob.io/v1alpha1/namespaces/{NAMESPACE}/ddpjobs"
USER_AGENT = "ddpjob-operator"
WINDOW_SECONDS, QUICK_SECONDS = 60.0, 10.0
PATIENCE_SECONDS, POLL_SECONDS = 3600.0, 1.0
APPLIERS = 8  # users at the same time
RATE = "Pods created"
MEDIAN, P99 = (f"Job applied → pod created, {which}" for which in ("median", "p99"))
RUNNING = "First job applied → all jobs run"
CREATING_CPU = "CPU time of the operator until all jobs run"
IDLE_CPU = "CPU of the operator while all jobs train"
REQUESTS = "Requests of the operator to the API server while all jobs train, per job"
CREATING_STALL = "Longest callback of the operator until all jobs run"
IDLE_STALL = "Longest callback of the operator while all jobs train"
RESTART = "Operator starts again → all jobs observed"
RESTART_CPU = "CPU time of the operator for that"
MEMORY = "Memory (RSS) of the operator, peak"
UNITS = {
    RATE: "per s", MEDIAN: "s", P99: "s", RUNNING: "s", CREATING_CPU: "s", CREATING_STALL: "s",
    IDLE_CPU: "cores", IDLE_STALL: "s", REQUESTS: "per min", RESTART: "s", RESTART_CPU: "s",
    MEMORY: "MB",
}  # fmt: skip
GOALS = {RESTART: 3.0, MEMORY: 150.0}  # of 1,000 jobs of 10 workers
WITH_GOALS = "1000x10"

Object = dict[str, Any]


class Size(NamedTuple):
    """A number of jobs, and of workers of each."""

    jobs: int
    workers: int

    @classmethod
    def parse(cls, text: str) -> Size:
        jobs, _, workers = text.partition("x")
        return cls(int(jobs), int(workers))

    def __str__(self) -> str:
        return f"{self.jobs}x{self.workers}"

    @property
    def label(self) -> str:
        jobs = "one job" if self.jobs == 1 else f"{self.jobs:,} jobs"
        return f"{jobs} of {self.workers:,} workers"


class ControlPlaneError(Exception):
    """The operator ended, or the jobs do not run."""


class Operator:
    """A running operator."""

    def __init__(self, folder: Path, server: ControlPlane) -> None:
        self._stalls, self._metrics = folder / "stalls", free_port()
        host, _, port = server.url.removeprefix("https://").partition(":")
        self._log = (folder / "operator.log").open("ab")
        command = [
            sys.executable, str(OPERATOR), str(folder), str(self._stalls), "run", "--agent-image=x",
            f"--key-file={folder / 'operator.key'}", f"--metrics-port={self._metrics}",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        }
        self._process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log
        )
        self._observed = psutil.Process(self._process.pid)

    def cpu(self) -> float:
        """Seconds of CPU time so far."""
        times = self._observed.cpu_times()
        return times.user + times.system

    def peak_mb(self) -> float:
        """The highest memory so far."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6

    def longest_callback(self) -> float:
        """Seconds since the last call."""
        self._stalls.unlink(missing_ok=True)
        self._process.send_signal(signal.SIGUSR1)
        wait_until(self._stalls.exists, "the operator writes its longest callback", 0.05)
        return float(self._stalls.read_text())

    def jobs_running(self) -> int:
        """Return the number of jobs whose state it knows, by its own metrics."""
        if self._process.poll() is not None:
            raise ControlPlaneError("the operator has ended")
        url = f"http://127.0.0.1:{self._metrics}/metrics"
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(url, timeout=30.0) as answer:
                lines = answer.read().decode().splitlines()
            found = [line for line in lines if line.startswith('ddpjob_jobs{state="Running"}')]
            return round(float(found[0].split()[-1])) if found else 0
        return 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()


def wait_until(true: Callable[[], object], what: str, pause: float = POLL_SECONDS) -> float:
    """Return when it became true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise ControlPlaneError(f"never: {what}")
        time.sleep(pause)
    return time.monotonic()


@contextlib.contextmanager
def a_cluster(folder: Path) -> Iterator[ControlPlane]:
    """An API server with the CRD, and nodes."""
    with control_plane(folder) as server:
        server.create_namespace(NAMESPACE)
        server.send("POST", DEFINITIONS, yaml.safe_load(CRD.read_text()))
        wait_until(lambda: server.answer("GET", ALL_JOBS)[0] == 200, "DDPJobs are served")
        (folder / "token").write_text(server.http.headers["Authorization"].partition(" ")[2])
        (folder / "ca.crt").write_bytes((folder / "apiserver.crt").read_bytes())
        (folder / "operator.key").write_text(secrets.token_hex(32))
        with (folder / "nodes.log").open("wb") as log:
            command = [sys.executable, str(NODES), str(server.kubeconfig)]
            nodes = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                yield server
            finally:
                nodes.kill()
                nodes.wait()


def measure(size: Size, seconds: float) -> dict[str, float]:
    """Measure one size in a cluster of its own."""
    with tempfile.TemporaryDirectory() as name, a_cluster(Path(name)) as server:
        operator = Operator(Path(name), server)
        try:
            wait_until(lambda: operator.cpu() and _is_watching(server), "the operator watches")
            operator.longest_callback()
            found, began = {}, operator.cpu()
            applied_at = time.monotonic()
            _apply(server, size)
            all_run = wait_until(lambda: _jobs_running(server) == size.jobs, "all jobs run")
            found[RUNNING] = all_run - applied_at
            found[CREATING_CPU] = operator.cpu() - began
            found[CREATING_STALL] = operator.longest_callback()
            found |= _creations(_audited(server))
            requests, began, at = len(_mine(_audited(server))), operator.cpu(), time.monotonic()
            operator.jobs_running()  # as Prometheus asks now and then
            time.sleep(seconds)
            lasted = time.monotonic() - at
            found[IDLE_CPU] = (operator.cpu() - began) / lasted
            requests = len(_mine(_audited(server))) - requests
            found[REQUESTS] = requests / size.jobs / lasted * 60
            found[IDLE_STALL] = operator.longest_callback()
            found[MEMORY] = operator.peak_mb()
            operator.kill()
            at, operator = time.monotonic(), Operator(Path(name), server)
            found[RESTART] = (
                wait_until(lambda: operator.jobs_running() == size.jobs, "all are observed") - at
            )
            found[RESTART_CPU] = operator.cpu()
            found[MEMORY] = max(found[MEMORY], operator.peak_mb())
            return found
        finally:
            operator.kill()


def _is_watching(server: ControlPlane) -> bool:
    watched = {each["objectRef"].get("resource") for each in _mine(_audited(server))}
    return {"pods", "services"} <= watched


def _jobs_running(server: ControlPlane) -> int:
    jobs = server.get(JOBS)["items"]
    return sum((each.get("status") or {}).get("state") == "Running" for each in jobs)


def _apply(server: ControlPlane, size: Size) -> None:
    def create(number: int) -> None:
        job = {
            "apiVersion": "ddpjob.io/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": f"job-{number:04}"},
            "spec": {
                "image": "trainer", "command": ["torchrun", "train.py"], "replicas": size.workers,
            },
        }  # fmt: skip
        server.send("POST", JOBS, job)

    with ThreadPoolExecutor(APPLIERS) as pool:
        for _ in pool.map(create, range(size.jobs)):
            pass


def _audited(server: ControlPlane) -> list[Object]:
    """All requests so far but watches that have not ended."""
    lines = server.audit_log.read_text().splitlines()
    found = (json.loads(line) for line in lines)
    return [each for each in found if "objectRef" in each]


def _mine(entries: Sequence[Object]) -> list[Object]:
    """Requests of the operator."""
    return [each for each in entries if USER_AGENT in each.get("userAgent", "")]


def _creations(entries: Sequence[Object]) -> dict[str, float]:
    """Read from the API server's own times when jobs and pods were there."""
    applied, created = {}, []
    for each in entries:
        ref, code = each["objectRef"], (each.get("responseStatus") or {}).get("code")
        if each["verb"] != "create" or code != 201 or "subresource" in ref:
            continue
        at = datetime.fromisoformat(each["stageTimestamp"]).timestamp()
        if ref["resource"] == "ddpjobs":
            applied[ref["name"]] = at
        elif ref["resource"] == "pods":
            created.append((at, ref["name"].rpartition("-")[0]))
    delays = sorted(at - applied[_job_of(name)] for at, name in created)
    lasted = max(at for at, _ in created) - min(applied.values())
    return {
        RATE: len(created) / lasted,
        MEDIAN: delays[len(delays) // 2],
        P99: delays[int(0.99 * (len(delays) - 1))],
    }


def _job_of(pod: str) -> str:
    return pod.removesuffix("-rendezvous").partition("-worker-")[0]


def figures(found: dict[Size, dict[str, float]]) -> list[Figure]:
    """One table for each measure, one row for each size."""
    return [
        Figure(
            name, unit, size.label, {size.label: [found[size][name]]},
            GOALS.get(name) if str(size) == WITH_GOALS else None,
            better="higher" if name == RATE else "lower",
        )
        for name, unit in UNITS.items() for size in found
    ]  # fmt: skip


def main() -> int:
    """Run the benchmark, or show its last results."""
    console = Console(highlight=False)
    if print_if_asked(RESULT):
        return 0
    quick = is_set("QUICK")
    given = os.environ.get("SIZES") or ("10x3" if quick else "200x3 1000x10 1x1000")
    facts, found = machine(), {}
    for size in map(Size.parse, given.split()):
        console.print(size.label)
        try:
            found[size] = measure(size, QUICK_SECONDS if quick else WINDOW_SECONDS)
        except (ControlPlaneError, AssertionError) as error:
            console.print(f"failed: {error!r}", markup=False)
            return 1
    result = {
        "name": "control_plane", "quick": quick, "machine": facts, "versions": versions("ddpjob"),
        "notes": ["API server, etcd, nodes and services share the machine with the operator."],
        "figures": [each.to_json() for each in figures(found)],
    }  # fmt: skip
    hand_in(result, RESULT, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
