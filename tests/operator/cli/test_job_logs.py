"""Logs of a job's workers, from a scripted API server: no other tier but e2e has a kubelet."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import typer.testing

from ddpjob import ClusterError, Job
from ddpjob_operator.cli.common import CommandError, ExitCode
from ddpjob_operator.cli.jobs import job_logs, jobs_api, workers
from ddpjob_operator.cli.jobs.access import connect
from ddpjob_operator.cli.jobs.workers import Wanted
from ddpjob_operator.cli.main import app
from support.http_server import kubeconfig

Object = dict[str, Any]
JOB_PATH = "/apis/ddpjob.io/v1alpha1/namespaces/default/ddpjobs/digits"
PODS = "/api/v1/namespaces/default/pods"
DDPJOB = Path(sys.executable).with_name("ddpjob")
MISSING = {"kind": "Status", "message": "not found", "details": {"name": "digits"}}


def make_job(
    state: str = "Running", *, failure: str = "", members: str = "000-1", ranks: str = "0 1"
) -> Object:
    """Make a job with two processes per worker; `ranks` are the first ones of each member."""
    failed = {"type": "Failed", "status": "True", "reason": "X", "message": failure}
    return {
        "metadata": {"name": "digits", "namespace": "default", "uid": "u"},
        "spec": {},
        "status": {
            "state": state,
            "conditions": [failed] if failure else [],
            "membership": {
                "id": "1.1.1",
                "workers": [f"digits-worker-{each}" for each in members.split()],
                "firstRanks": [int(each) for each in ranks.split()],
                "worldSize": 2 * len(members.split()),
                "since": "2026-01-01T00:00:00Z",
            },
        },
    }


def make_pod(name: str, role: str = "worker", **state: Object) -> Object:
    return {
        "metadata": {
            "name": f"digits-{name}",
            "namespace": "default",
            "uid": name,
            "labels": {"ddpjob.io/role": role},
        },
        "spec": {"containers": [{"name": "sidecar"}, {"name": "trainer"}]},
        "status": {"containerStatuses": [{"name": "trainer", "state": state or {"running": {}}}]},
    }


class Scripted:
    """An API server with one job, its pods and their logs; a log is a list of answers."""

    def __init__(self, *pods: Object, job: Object | None = None) -> None:
        self.job = job or make_job()
        self.pods = list(pods)
        self.events: list[Object] = []
        self.logs: dict[str, list[Iterable[str | None]]] = {}
        self.asked: list[dict[str, str]] = []  # queries of logs
        self.on_log: Callable[[], None] = lambda: None

    def answer(self, path: str) -> Object | None:
        if path == JOB_PATH:
            return self.job
        if path == PODS:
            return {"items": self.pods}
        if path.endswith("/events"):
            return {"items": self.events}
        name = path.rpartition("/")[2]
        return next((pod for pod in self.pods if pod["metadata"]["name"] == name), None)

    def lines(self, pod: str, query: dict[str, str]) -> Iterable[str | None]:
        self.asked.append(query)
        answers = self.logs[pod.removeprefix("digits-")]
        self.on_log()
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Server(ThreadingHTTPServer):
    """Prints nothing when a client ends in the middle of an answer."""

    def handle_error(self, *arguments: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serving(scripted: Scripted) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path.endswith("/log"):
                self.send_log(address.path.split("/")[-2], dict(parse_qsl(address.query)))
                return
            found = scripted.answer(address.path)
            body = json.dumps(found or MISSING).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_log(self, pod: str, query: dict[str, str]) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in scripted.lines(pod, query):
                if line is None:  # the connection breaks
                    self.close_connection = True
                    return
                data = f"{line}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run(scripted: Scripted, folder: Path, *arguments: str) -> typer.testing.Result:
    with serving(scripted) as url:
        config = kubeconfig(folder / "kubeconfig", url)
        command = ["logs", "digits", *arguments, "--kubeconfig", config]
        return typer.testing.CliRunner().invoke(app, command)


def stamped(second: int, line: str) -> str:
    return f"2026-01-01T00:00:{second:02d}.000000000Z {line}"


@pytest.fixture
def two() -> Scripted:
    ended = {"exitCode": 1, "finishedAt": "2026-01-01T00:00:05Z"}
    scripted = Scripted(
        make_pod("rendezvous-1", "rendezvous"),
        make_pod("worker-000-1"),
        make_pod("worker-001-1", terminated=ended),
        make_pod("worker-002-1", waiting={"reason": "ErrImagePull"}),
    )
    scripted.logs = {
        "worker-000-1": [[stamped(1, "step 1"), stamped(2, "")]],
        "worker-001-1": [[stamped(1, "ValueError")]],
    }
    return scripted


def test_rank_0_by_default(two: Scripted, tmp_path: Path) -> None:
    asked = {"container": "trainer", "timestamps": "true", "tailLines": "5"}
    done = run(two, tmp_path, "--tail", "5")
    assert done.stdout == "step 1\n\n"
    assert two.asked == [asked]
    run(two, tmp_path, "--tail", "5", "--since", "1h2s")
    assert two.asked[1:] == [{**asked, "sinceSeconds": "3602"}]


def test_all_workers_with_their_names(two: Scripted, tmp_path: Path) -> None:
    done = run(two, tmp_path, "--all")
    assert done.stdout == ("[worker-000-1] step 1\n[worker-000-1] \n[worker-001-1] ValueError\n")
    assert done.stderr == "digits-worker-002-1 has not started: ErrImagePull\n"


@pytest.mark.parametrize("worker", ["worker-001", "digits-worker-001-1", "worker-001-1"])
def test_one_worker(two: Scripted, tmp_path: Path, worker: str) -> None:
    assert run(two, tmp_path, "--worker", worker).stdout == "ValueError\n"


def test_an_absent_worker_is_answered_with_those_that_exist(two: Scripted, tmp_path: Path) -> None:
    error = run(two, tmp_path, "--worker", "worker-009").exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.REJECTED
    assert str(error).startswith("digits has no worker worker-009 now; it has digits-worker-000-1,")


def test_the_first_failure(two: Scripted, tmp_path: Path) -> None:
    two.job = make_job("Failed", failure="digits-worker-001-1: rank 1: ValueError")
    done = run(two, tmp_path, "--failed")
    assert done.stdout == "ValueError\n"
    assert done.stderr == "digits-worker-001-1: rank 1: ValueError\n"


def test_a_failure_that_names_no_worker_is_the_first_that_ended(two: Scripted) -> None:
    assert workers.first_failure(make_job(), two.pods, []) == (
        "digits-worker-001-1 failed",
        "digits-worker-001-1",
    )
    with pytest.raises(CommandError, match="no worker of digits has failed"):
        workers.first_failure(make_job(), two.pods[:1], [])


def test_a_job_without_pods(tmp_path: Path) -> None:
    error = run(Scripted(job=make_job("Complete")), tmp_path).exception
    assert str(error).startswith("no pods of digits exist (state Complete, keepPods: Failed)")


def test_a_job_that_has_no_pods_yet(tmp_path: Path) -> None:
    job = make_job()
    message = "resumes when spec.suspend is false"
    suspended = {"type": "Suspended", "status": "True", "reason": "X", "message": message}
    job["status"] = {"state": "Suspended", "conditions": [suspended]}
    error = run(Scripted(job=job), tmp_path).exception
    assert str(error) == f"digits has no pods now, so there are no logs: Suspended: {message}"


def test_of_a_replaced_worker_the_newest_pod_or_the_one_before() -> None:
    pods = [make_pod(f"worker-000-{number}") for number in (9, 10, 2)]
    for previous, expected in ((False, "worker-000-10"), (True, "worker-000-9")):
        found = workers.choose(make_job(), pods, Wanted(), previous=previous)
        assert [pod["metadata"]["uid"] for pod in found] == [expected]
    assert workers.choose(make_job(), pods[:1], Wanted(), previous=True) == []


def test_follow_survives_a_broken_connection_and_ends_with_the_job(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)
    first, third = stamped(1, "step 1"), stamped(3, "step 3")
    second = [stamped(2, "step 2"), stamped(2, "loss 0.5"), stamped(2, "loss 0.5")]
    two.logs["worker-000-1"] = [[first, *second[:2], None], [first, *second, third]]

    def end() -> None:
        if len(two.asked) == 2:
            two.pods[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
            two.job = make_job("Complete")

    two.on_log = end
    done = run(two, tmp_path, "-f")
    assert done.stdout == "step 1\nstep 2\nloss 0.5\nloss 0.5\nstep 3\n"
    assert done.exit_code == ExitCode.OK
    assert two.asked[1]["sinceTime"] == "2026-01-01T00:00:02Z"


def test_follow_changes_over_to_the_worker_that_replaces_rank_0(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)

    def replace() -> None:
        if len(two.asked) == 1:
            two.pods[1] = make_pod("worker-000-2")
            two.logs["worker-000-2"] = [[stamped(3, "step 3")]]
            two.job = make_job(members="000-2")
        else:
            two.pods[1] = make_pod("worker-000-2", terminated={"exitCode": 0})
            two.job = make_job("Complete", members="000-2")

    two.on_log = replace
    assert run(two, tmp_path, "-f").stdout == "step 1\n\nstep 3\n"


UNEQUAL = {"members": "001-1 000-1", "ranks": "0 3"}  # three processes and one


@pytest.mark.parametrize(
    ("rank", "shown"),
    [(None, "ValueError\n"), (0, "ValueError\n"), (2, "ValueError\n"), (3, "step 1\n\n")],
)
def test_the_worker_that_runs_a_rank(
    two: Scripted, tmp_path: Path, rank: int | None, shown: str
) -> None:
    two.job = make_job(**UNEQUAL)
    done = run(two, tmp_path, *([] if rank is None else ["--rank", str(rank)]))
    assert (done.stdout, done.stderr) == (shown, "")


def test_a_rank_that_no_worker_has(two: Scripted, tmp_path: Path) -> None:
    two.job = make_job(**UNEQUAL)
    error = str(run(two, tmp_path, "--rank", "4").exception)
    assert error.startswith("digits has no rank 4 in membership 1.1.1: its ranks are 0 to 3")


def test_unknown_ranks_are_said_to_be_unknown(two: Scripted, tmp_path: Path) -> None:
    two.job = make_job(members="001-1 000-1", ranks="")
    unknown = "the worker with rank 0 is not known: no torchrun of membership 1.1.1 has reported"
    done = run(two, tmp_path)
    assert done.stdout == "ValueError\n"
    assert done.stderr.startswith(unknown)
    assert done.stderr.endswith("The log of the first worker follows; --all shows all workers\n")
    error = run(two, tmp_path, "--rank", "0").exception
    assert str(error).startswith(unknown)
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.REJECTED


def test_follow_waits_for_the_ranks_and_then_says_what_it_shows(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)
    two.job = make_job(members="000-1", ranks="")
    two.pods[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
    asked = two.answer

    def answer(path: str) -> Object | None:
        reads.append(path)
        if reads.count(JOB_PATH) == 3:
            two.job = make_job(members="001-1 000-1")
        if reads.count(JOB_PATH) == 6:
            two.job = make_job("Complete", members="001-1 000-1")
        return asked(path)

    reads: list[str] = []
    monkeypatch.setattr(two, "answer", answer)
    done = run(two, tmp_path, "-f")
    assert (done.stdout, done.stderr) == ("ValueError\n", "")
    reads.clear()
    two.job = make_job(members="000-1", ranks="")
    monkeypatch.setattr(job_logs, "RANKS_SECONDS", -1.0)
    done = run(two, tmp_path, "-f")
    assert done.stdout == "step 1\n\nValueError\n"
    assert done.stderr.count("is not known") == 1


def test_follow_changes_over_to_a_worker_that_takes_rank_0_from_a_living_one(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)
    changed = threading.Event()

    def unequal() -> Iterator[str]:
        yield stamped(1, "step 1")
        two.job = make_job(members="001-1 000-1")
        assert changed.wait(60)
        two.pods[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
        for second in range(2, 9):
            yield stamped(second, "rank 1 now")

    def other() -> Iterator[str]:
        yield stamped(3, "step 2")
        two.job = make_job("Complete", members="001-1 000-1")
        changed.set()

    two.logs = {"worker-000-1": [unequal()], "worker-001-1": [other()]}
    assert run(two, tmp_path, "-f").stdout == "step 1\nstep 2\n"
    assert two.asked[1]["sinceTime"] == "2026-01-01T00:00:00Z"


def test_ctrl_c_ends_the_command_and_sends_nothing(two: Scripted, tmp_path: Path) -> None:
    with serving(two) as url:
        config = kubeconfig(tmp_path / "kubeconfig", url)
        command = [str(DDPJOB), "logs", "digits", "-f", "--all", "--kubeconfig", config]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("[worker-00")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (ExitCode.INTERRUPTED, "")


def test_python_receives_the_lines_that_the_command_prints(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.job["status"]["state"] = "Complete"
    job = Job("digits", command=["torchrun", "train.py"])
    printed: dict[str, list[str]] = {"first": [], "all": [], "followed": []}
    with serving(two) as url:
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "kubeconfig", url))
        job.logs(rank=0, tail=1, on_line=printed["first"].append)
        assert two.asked[-1]["tailLines"] == "1"
        job.logs(everyone=True, on_line=printed["all"].append)
        job.logs(worker="worker-001", follow=True, on_line=printed["followed"].append)
        with pytest.raises(ClusterError, match="rank 7"):
            job.logs(rank=7)
    assert printed == {
        "first": ["step 1", ""],
        "all": ["[worker-000-1] step 1", "[worker-000-1] ", "[worker-001-1] ValueError"],
        "followed": ["ValueError"],
    }


STOPPED = [
    "Traceback (most recent call last):",
    '  File "run.py", line 1142, in <module>',
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 17 got signal: 15",
]
AGENT = "2026-01-01 00:00:02,000 ddpjob.agent membership 1.1.2 (left): 1 worker, world size 1"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["-f"], ["torchrun: stopped by a signal (traceback folded; --raw shows it)", AGENT]),
        (["-f", "--raw"], [*STOPPED, AGENT]),
        ([], [*STOPPED, AGENT]),
    ],
)
def test_a_change_is_one_line_of_what_is_followed(
    two: Scripted, tmp_path: Path, options: list[str], shown: list[str]
) -> None:
    two.job = make_job("Complete")
    two.pods[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
    two.logs["worker-000-1"] = [[stamped(1, line) for line in (*STOPPED, AGENT)]]
    assert run(two, tmp_path, *options).stdout.splitlines() == shown


def test_a_followed_traceback_without_an_end_is_shown_when_nothing_follows(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)
    shown: list[str] = []
    more = threading.Event()

    def on_line(line: str) -> None:
        shown.append(line)
        more.set()

    def log() -> Iterator[str]:
        yield stamped(1, STOPPED[0])
        assert more.wait(60)
        two.pods[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
        two.job = make_job("Complete")

    two.logs["worker-000-1"] = [log()]
    with serving(two) as url:
        cluster = connect(None, None, kubeconfig(tmp_path / "kubeconfig", url))
        job_logs.follow_logs(cluster, "digits", Wanted(), {}, on_line, folds=True)
    assert shown == STOPPED[:1]


def test_follow_says_why_there_are_no_logs_yet(
    two: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "PAUSE_SECONDS", 0.01)
    stalled = {"type": "Stalled", "status": "True", "reason": "TooFewPlaced", "message": "0/2"}
    ended, started = make_job("Complete"), two.pods[:2]
    two.job = make_job("Stalled", members="")
    two.job["status"] = {"state": "Stalled", "conditions": [stalled]}
    two.pods = []
    asked = two.answer

    def answer(path: str) -> Object | None:
        reads.append(path)
        if reads.count(JOB_PATH) == 4:
            started[1] = make_pod("worker-000-1", terminated={"exitCode": 0})
            two.job, two.pods = ended, started
        return asked(path)

    reads: list[str] = []
    monkeypatch.setattr(two, "answer", answer)
    done = run(two, tmp_path, "-f")
    assert done.stdout == "step 1\n\n"
    assert done.stderr.splitlines() == ["digits has no logs yet: Stalled: TooFewPlaced: 0/2"]
