"""`ddpjob` against a real API server: real processes, one job, many commands.

There is no kubelet here: the status is written as the operator writes it. tests/e2e reads logs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.control_plane import ControlPlane, Object, eventually
from cluster.jobs import Jobs
from ddpjob_operator.api.constants import ConditionType, Reason
from ddpjob_operator.api.status import (
    DDPJobStatus,
    MembershipStatus,
    ProgressStatus,
    RestartsStatus,
)
from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.planner.status.conditions import condition
from support import forked_command
from support.builders import NOW, make_status
from support.forked_command import DDPJOB

PATIENCE_SECONDS = 120
JOB: Object = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "digits"},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 2},
}

HALF = {"limits": {"cpu": 0.5}}


class Shell:
    """A user's shell: a kubeconfig whose context names the test's namespace."""

    def __init__(self, server: ControlPlane, namespace: str, folder: Path) -> None:
        config = yaml.safe_load(server.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = namespace
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """A command that runs."""
        return forked_command.start(
            arguments, self.folder, {**os.environ, "KUBECONFIG": str(self.kubeconfig), **env}
        )

    def fails(self, code: ExitCode, *arguments: str, stdin: str = "", **env: str) -> str:
        """What a command prints that ends with this code; a Python traceback is never part of it."""
        with self.start(*arguments, **env) as process:
            out, err = process.communicate(stdin, PATIENCE_SECONDS)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}{err}"
        assert "Traceback" not in err
        return out + err

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints, which must succeed."""
        return self.fails(ExitCode.OK, *arguments, stdin=stdin)

    def write(self, name: str, *jobs: Object) -> str:
        """The name of a job file."""
        (self.folder / name).write_text(yaml.safe_dump_all(jobs))
        return name


@pytest.fixture
def ddpjob(jobs: Jobs, tmp_path: Path) -> Shell:
    return Shell(jobs.server, jobs.namespace, tmp_path)


def named(name: str, **spec: object) -> Object:
    return {**JOB, "metadata": {"name": name}, "spec": {**JOB["spec"], **spec}}


def test_a_cluster_without_the_operator(apiserver: ControlPlane, tmp_path: Path) -> None:
    ddpjob = Shell(apiserver, "default", tmp_path)
    for arguments in (("get",), ("apply", "-f", ddpjob.write("job.yaml", JOB))):
        said = ddpjob.fails(ExitCode.REJECTED, *arguments)
        assert f"{apiserver.url} does not know DDPJobs: the operator is not installed" in said
        assert "helm install ddpjob-operator " in said


def test_a_quantity_without_quotes_is_sent_as_text(ddpjob: Shell, jobs: Jobs) -> None:
    file = ddpjob.write("job.yaml", {**JOB, "spec": {**JOB["spec"], "resources": HALF}})
    assert ddpjob("apply", "-f", file) == "ddpjob/digits created\n"
    assert jobs.get()["spec"]["resources"] == {"limits": {"cpu": "0.5"}}


def test_a_job_is_made_changed_and_deleted(ddpjob: Shell, jobs: Jobs) -> None:
    file = ddpjob.write("job.yaml", JOB)
    assert ddpjob("get") == f"no jobs in namespace {jobs.namespace}\n"
    assert ddpjob("apply", "-f", file) == "ddpjob/digits created\n"
    assert ddpjob("apply", "-f", file) == "ddpjob/digits unchanged\n"
    several = yaml.safe_dump_all([named("digits", maxReplicas=4), named("other")])
    printed = ddpjob("apply", "-f", "-", stdin=several)
    assert printed == "ddpjob/digits configured\nddpjob/other created\n"
    heads, *rows = (line.split() for line in ddpjob("get").splitlines())
    assert heads == ["NAME", "STATE", "READY", "WORLD", "PROGRESS", "RESTARTS", "AGE"]
    assert [row[:3] for row in rows] == [[n, "Pending", "-"] for n in ("digits", "other")]
    assert ddpjob("scale", "digits", "3") == "ddpjob/digits scaled to 3\n"
    assert jobs.get()["spec"]["replicas"] == 3
    ddpjob("suspend", "-q", "digits", "other")
    assert jobs.get()["spec"]["suspend"] is True
    assert ddpjob("resume", "digits") == "ddpjob/digits resumed\n"
    assert jobs.get()["spec"]["suspend"] is False
    shown = ddpjob("get", "digits", "-o", "yaml")
    assert yaml.safe_load(shown)["spec"]["maxReplicas"] == 4
    assert ddpjob("apply", "-f", "-", stdin=shown) == "ddpjob/digits unchanged\n"
    assert ddpjob("delete", "digits", "other", "--wait") == (
        "ddpjob/digits deleted\nddpjob/other deleted\n"
    )
    assert jobs.names() == []


def test_jobs_are_chosen_as_with_kubectl(ddpjob: Shell, jobs: Jobs) -> None:
    """By labels, by what `get -o name` prints, by a file; in a namespace given first."""
    labels = {"metadata": {"name": "other", "labels": {"team": "a"}}}
    file = ddpjob.write("jobs.yaml", JOB, {**named("other"), **labels})
    ddpjob("apply", "-f", file)
    assert ddpjob("get", "-o", "name", "-l", "team=a") == "ddpjob.ddpjob.io/other\n"
    assert (
        ddpjob("get", "-l", "team=b")
        == f"no jobs with these labels in namespace {jobs.namespace}\n"
    )
    both = ddpjob("get", *ddpjob("get", "-o", "name").split(), "-o", "json")
    assert [job["metadata"]["name"] for job in json.loads(both)["items"]] == ["digits", "other"]
    everywhere = ddpjob("top", "-A", "-l", "team=a").splitlines()[-1].split()
    assert everywhere[:3] == [jobs.namespace, "other", "Pending"]
    assert ddpjob("suspend", "-l", "team=a") == "ddpjob/other suspended\n"
    assert ddpjob("scale", "--replicas=3", "ddp/digits") == "ddpjob/digits scaled to 3\n"
    said = ddpjob.fails(ExitCode.INVALID, "delete", "digits", "-l", "team=a")
    assert said == "give names of jobs, or labels with -l such as `-l team=a`, and not both\n"
    said = ddpjob.fails(ExitCode.REJECTED, "-n", "elsewhere", "delete", "digits")
    assert "no job digits in namespace elsewhere" in said
    assert ddpjob("-n", "elsewhere", "delete", "digits", "--ignore-not-found") == ""
    assert ddpjob("delete", "-f", file) == "ddpjob/digits deleted\nddpjob/other deleted\n"
    assert jobs.names() == []


def test_nothing_is_applied_if_one_document_is_wrong(ddpjob: Shell, jobs: Jobs) -> None:
    file = ddpjob.write("jobs.yaml", JOB, named("other", replica=2))
    said = ddpjob.fails(ExitCode.INVALID, "apply", "-f", file)
    assert said.startswith(f"{file}: line 21: spec.replica: unknown field 'replica'")
    assert jobs.names() == []


def test_objects_of_other_kinds_are_left_to_kubectl(ddpjob: Shell, jobs: Jobs) -> None:
    others = [{"apiVersion": "v1", "kind": kind} for kind in ("ConfigMap", "Secret", "Secret")]
    said = ddpjob.fails(ExitCode.OK, "apply", "-f", ddpjob.write("all.yaml", *others, JOB))
    assert said == (
        "ddpjob/digits created\nall.yaml: skipped ConfigMap, Secret; only a DDPJob is applied; "
        "apply the rest: kubectl apply -f all.yaml\n"
    )
    assert jobs.names() == ["digits"]
    said = ddpjob.fails(ExitCode.INVALID, "apply", "-f", ddpjob.write("none.yaml", *others))
    assert "kind: must be DDPJob, not 'ConfigMap'" in said
    assert "skipped" not in said


def test_errors_have_a_code_a_cause_and_a_remedy(ddpjob: Shell, jobs: Jobs) -> None:
    jobs.create(named("digits", maxReplicas=2))
    absent = ddpjob.fails(ExitCode.REJECTED, "get", "nobody")
    assert absent.startswith(f"there is no job nobody in namespace {jobs.namespace}; `ddpjob get")
    rejected = ddpjob.fails(ExitCode.REJECTED, "scale", "digits", "3")
    assert "spec.replicas: " in rejected
    assert "above maxReplicas (2)" in rejected
    nowhere = ddpjob.fails(ExitCode.REJECTED, "apply", "-n", "nowhere", "-f", "-", stdin=text())
    assert 'namespaces "nowhere" not found' in nowhere
    missing = ddpjob.fails(ExitCode.INVALID, "get", KUBECONFIG="/nowhere/config")
    assert missing.startswith("there is no kubeconfig at /nowhere/config")
    unknown = ddpjob.fails(ExitCode.INVALID, "get", "--context", "other")
    assert "cannot be used" in unknown
    assert "`ddpjob scale digits 4`" in ddpjob.fails(ExitCode.INVALID, "scale", "digits")


def test_a_server_that_is_missing_or_knows_nobody(ddpjob: Shell, jobs: Jobs) -> None:
    config = yaml.safe_load(ddpjob.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "guessed"}
    ddpjob.kubeconfig.write_text(yaml.safe_dump(config))
    assert "rejected your credentials (401)" in ddpjob.fails(ExitCode.REJECTED, "get")
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    ddpjob.kubeconfig.write_text(yaml.safe_dump(config))
    said = ddpjob.fails(ExitCode.UNREACHABLE, "get")
    assert said.startswith("https://127.0.0.1:1 cannot be reached: ")
    assert "Connection refused" in said


def test_a_user_without_rights_learns_which_one_is_missing(ddpjob: Shell, jobs: Jobs) -> None:
    accounts = f"/api/v1/namespaces/{jobs.namespace}/serviceaccounts"
    jobs.server.send("POST", accounts, {"metadata": {"name": "bob"}})
    answer = jobs.server.send("POST", f"{accounts}/bob/token", {"spec": {"audiences": []}})
    config = yaml.safe_load(ddpjob.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    ddpjob.kubeconfig.write_text(yaml.safe_dump(config))
    said = ddpjob.fails(ExitCode.REJECTED, "suspend", "digits")
    assert 'cannot patch resource "ddpjobs" in API group "ddpjob.io"' in said
    assert "bind the cluster role ddpjob-editor or ddpjob-viewer" in said


def test_a_shell_completes_commands_and_job_names(ddpjob: Shell, jobs: Jobs) -> None:
    jobs.create(JOB)
    script = """
eval "$(ddpjob completion bash)"
COMP_WORDS=(ddpjob de) COMP_CWORD=1
_ddpjob_completion ddpjob
echo "${COMPREPLY[@]}"
COMP_WORDS=(ddpjob describe di) COMP_CWORD=2
_ddpjob_completion ddpjob
echo "${COMPREPLY[@]}"
"""
    path = f"{DDPJOB.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(ddpjob.kubeconfig), "PATH": path}

    def completed() -> bool:
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return (done.stdout, done.stderr) == ("describe delete\ndigits\n", "")

    eventually(completed, "the API server has answered in the time of a completion")


def test_kubectl_completes_the_plugin(
    ddpjob: Shell, jobs: Jobs, apiserver: ControlPlane, tmp_path: Path
) -> None:
    jobs.create(JOB)
    code = "from ddpjob_operator.cli.kubectl_completion import main; main()"
    for name in ("kubectl_complete-ddp", "kubectl-ddp"):  # kubectl completes only what it finds
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
        script.chmod(0o755)
    environment = {
        **os.environ,
        "KUBECONFIG": str(ddpjob.kubeconfig),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }

    def completed() -> bool:
        done = subprocess.run(
            [apiserver.programs / "kubectl", "__complete", "ddp", "describe", "di"],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout == "digits\n:4\n"

    eventually(completed, "the API server has answered in the time of a completion")


STATUS = make_status(
    state="Stalled",
    observed_generation=1,
    conditions=(
        condition(ConditionType.RUNNING, False, Reason.WAITING, "1 of 2 workers"),
        condition(ConditionType.STALLED, True, Reason.TOO_FEW_PLACED, "no node has 8 GPUs"),
    ),
    membership=MembershipStatus(
        id="1.1.3", workers=("digits-worker-000-1",), world_size=1, since=NOW, cause="lost"
    ),
    restarts=RestartsStatus(application=1, infrastructure=2, total=3, repeated_steps=1),
    progress=ProgressStatus(step=40, total_steps=100, metrics={"loss": 0.5}),
    ready="1/2",
)
RUNNING = STATUS.model_copy(
    update={
        "state": "Running",
        "conditions": (condition(ConditionType.RUNNING, True, Reason.TRAINING, "2 workers"),),
    }
)


def ended(kind: ConditionType, reason: Reason, message: str) -> DDPJobStatus:
    conditions = (condition(kind, True, reason, message),)
    return STATUS.model_copy(update={"state": str(kind), "conditions": conditions})


COMPLETE = ended(ConditionType.COMPLETE, Reason.COMPLETED, "all done")


def post_event(jobs: Jobs, job: Object) -> None:
    about = {field: job["metadata"][field] for field in ("name", "namespace", "uid")}
    event = {
        "metadata": {"generateName": "digits-", "namespace": jobs.namespace},
        "involvedObject": {"apiVersion": job["apiVersion"], "kind": "DDPJob", **about},
        "reason": "WorkerLost",
        "message": "membership 1.1.3 with 1 workers",
        "type": "Warning",
        "lastTimestamp": job["metadata"]["creationTimestamp"],
    }
    jobs.server.send("POST", f"/api/v1/namespaces/{jobs.namespace}/events", event)


def test_the_story_of_a_job(ddpjob: Shell, jobs: Jobs) -> None:
    post_event(jobs, jobs.create(JOB))
    jobs.write_status(STATUS)
    told = ddpjob("describe", "digits")
    assert told.startswith(f"digits (namespace {jobs.namespace})\n\nState       Stalled\n")
    for line in (
        "Workers     1/2 run",
        "Progress    40/100 steps; loss 0.5",
        "Restarts    3 (1 failure, 2 losses); 1 step repeated",
        "            TooFewPlaced: no node has 8 GPUs",
        "Waiting     1 of 2 workers",
    ):
        assert f"\n{line}\n" in told
    assert "! membership 1.1.3 with 1 workers" in told
    shown = ddpjob("get", "digits", "-o", "yaml")
    assert ddpjob("apply", "-f", "-", stdin=shown) == "ddpjob/digits unchanged\n"
    heads, row = ddpjob("events", "digits").splitlines()
    assert heads.split() == ["AGE", "REASON", "MESSAGE"]
    assert row.split()[1:] == ["WorkerLost", "!", *"membership 1.1.3 with 1 workers".split()]
    heads, row = ddpjob("top").splitlines()
    expected = ["digits", "Stalled", "1", "40/100", "40%", "-", "-", "loss", "0.5"]
    assert row.split() == expected

    [event] = json.loads(ddpjob("events", "digits", "-o", "json"))["items"]
    assert (event["kind"], event["reason"]) == ("Event", "WorkerLost")
    [top] = yaml.safe_load(ddpjob("top", "-o", "yaml"))
    assert (top["name"], top["step"], top["totalSteps"]) == ("digits", 40, 100)
    assert top["stepsPerSecond"] is None
    whole = json.loads(ddpjob("describe", "digits", "-o", "json"))
    assert (whole["job"]["status"]["state"], whole["pods"]) == ("Stalled", [])
    assert whole["events"] == [event]
    assert "omit -o, or omit -w" in ddpjob.fails(ExitCode.INVALID, "top", "-w", "-o", "json")


def test_wait_follows_a_job_to_its_end_and_never_touches_it(ddpjob: Shell, jobs: Jobs) -> None:
    jobs.create(JOB)
    said = ddpjob.fails(ExitCode.TIMEOUT, "wait", "digits", "--timeout=0.2")
    assert "digits has not ended within 0.2 s: Pending" in said
    with ddpjob.start("wait", "digits") as first, ddpjob.start("wait", "digits") as second:
        for process in (first, second):
            assert process.stdout is not None
            assert process.stdout.readline().split()[1] == "Pending"
        jobs.write_status(RUNNING)
        for process in (first, second):
            assert process.stdout is not None
            running = process.stdout.readline()
            assert (
                running.split(" ", 1)[1]
                == "Running: 2 workers (membership 1.1.3 after a lost worker)\n"
            )
        assert ddpjob("wait", "digits", "--for", "Running").count("\n") == 1
        before = jobs.get()
        second.send_signal(signal.SIGINT)
        assert second.communicate(timeout=PATIENCE_SECONDS) == ("", "")
        assert second.returncode == ExitCode.INTERRUPTED
        assert jobs.get() == before
        jobs.write_status(COMPLETE)
        out, err = first.communicate(timeout=PATIENCE_SECONDS)
        assert (out.split(" ", 1)[1], err) == (
            "Complete: all done (membership 1.1.3 after a lost worker)\n",
            "",
        )
        assert first.returncode == ExitCode.OK
    reason = Reason.APPLICATION_FAILED
    jobs.write_status(ended(ConditionType.FAILED, reason, "rank 1 failed\nValueError: no data"))
    said = ddpjob.fails(ExitCode.JOB_FAILED, "wait", "digits")  # the failure once
    assert said == (
        "digits failed: ApplicationFailed: rank 1 failed\nValueError: no data\n"
        "logs: ddpjob logs digits --failed\n"
    )


def test_a_closed_reader_ends_a_watch_quietly(ddpjob: Shell, jobs: Jobs) -> None:
    jobs.create(JOB)
    with ddpjob.start("get", "-w") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("NAME")
        assert process.stdout.readline().startswith("digits")
        process.stdout.close()
        jobs.write_status(RUNNING)
        assert process.wait(PATIENCE_SECONDS) == ExitCode.BROKEN_PIPE
        assert process.stderr is not None
        assert process.stderr.read() == ""


def text() -> str:
    return str(yaml.safe_dump(JOB))
