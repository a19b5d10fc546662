"""What users do with jobs: apply, look, scale, suspend, delete, several at once."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from ddpjob_operator.cli.common import ExitCode
from ddpjob_protocol.keys.credentials import JobKey
from e2e.conftest import Images
from e2e.jobs import Endless, endless
from e2e.kubectl import Kubectl, Object
from support import strangers
from support.key_traces import keys_from, keys_in, keys_of
from support.stories import happening, stories
from support.strangers import CONNECTIVITY, SERVICE, Answers


class Setting(NamedTuple):
    """What the scenes of a story need besides the job."""

    images: Images
    operator: Kubectl
    elsewhere: Kubectl  # another namespace


Scene = Callable[[Endless, Setting], None]


def seen_by_a_user(job: Endless, setting: Setting) -> None:
    job.kubectl.until(lambda: job.status["ready"] == "2/2", "the kubelet's word that they run")
    head, row = job.kubectl("get", "ddp").splitlines()
    assert head.split() == ["NAME", "STATE", "READY", "WORLD", "PROGRESS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["probe", "Running", "2/2", "2"]
    assert row.split()[-2] == "0"
    told = job.kubectl("describe", "ddp", "probe")
    assert "membership 1.1.1 with 2 workers, 2 processes" in told
    assert job.kubectl("get", "ddp", "--field-selector=status.state=Running", "-o", "name")
    job.kubectl("wait", "--for=condition=Running", "ddp/probe", "--timeout=60s")


def applied_twice_changes_nothing(job: Endless, setting: Setting) -> None:
    before, uids = job.object["metadata"]["generation"], job.uids()
    printed = job.kubectl.apply(endless(setting.images.digits, "probe", replicas=2, maxReplicas=4))
    assert "unchanged" in printed
    assert (job.object["metadata"]["generation"], job.uids()) == (before, uids)


def shows_a_viewer_no_key(job: Endless, setting: Setting) -> None:
    """The role `view` reads all but Secrets; neither that nor the operator's log has a key."""
    kubectl, viewer = job.kubectl, "--as=vera"
    for role in ("view", "ddpjob-viewer"):
        kubectl("create", "rolebinding", role, f"--clusterrole={role}", "--user=vera")
    kinds = ("ddpjobs,pods,services,endpointslices,configmaps,events,serviceaccounts,"
             "networkpolicies,persistentvolumeclaims,endpoints")  # fmt: skip
    seen: list[str] = []

    def reads_pods() -> bool:
        seen.append(kubectl.attempt(viewer, "get", kinds, "--output=json").stdout)
        return '"kind": "Pod"' in seen[-1]

    kubectl.until(reads_pods, "the API server knows the role")
    logs = [kubectl(viewer, "logs", name, "--all-containers") for name in job.uids()]
    assert "Forbidden" in kubectl.attempt(viewer, "get", "secrets").stderr
    selector = "--selector=app.kubernetes.io/name=ddpjob-operator"
    shown = "\n".join([*seen, *logs, setting.operator("logs", selector, "--tail=-1")])
    keys = keys_in_use(job, setting.operator)
    assert "ddpjob.rendezvous listening" in shown
    assert keys_in(shown, keys) == set()
    assert keys_from(shown, keys, [job.object["metadata"]["uid"]]) == set()


def keys_in_use(job: Endless, operator: Kubectl) -> dict[str, bytes]:
    """Return the keys of the job, as the administrator reads them, and that of the operator."""
    secrets = job.kubectl.get("secrets", labelSelector=f"ddpjob.io/job={job.name}")
    texts = [base64.b64decode(each["data"]["keys"]).decode() for each in secrets]
    [of_job] = [JobKey.parse(each) for each in texts if '"job"' in each]
    keys = keys_of(of_job, job.workers())
    for name in job.workers():
        assert any(keys[name].hex() in each for each in texts)
    [content] = operator.get("secrets", "ddpjob-operator-key")["data"].values()
    return {**keys, "the operator's key": base64.b64decode(content).strip()}


def refuses_a_pod_without_a_key(job: Endless, setting: Setting) -> None:
    """Neither the operator's interface nor the agents' opens to it, nor any port to a stranger."""
    images, told_before = setting.images, job.causes()
    service = f"probe-rendezvous.{job.kubectl.namespace}.svc:29400"
    url = f"http://{service}/report"
    impostor = {
        "DDPJOB_WORKER": job.workers()[0],
        "DDPJOB_PROCESSES": "1",
        "DDPJOB_SERVICE": service,
        "DDPJOB_KEYS": "/tmp/keys",
        "DDPJOB_ADDRESS": "127.0.0.1",
    }
    guessed = json.dumps({"worker": job.workers()[0], "key": "00" * 32, "peers": "00" * 32})
    run = 'printf %s "$0" > /tmp/keys && exec python3 /opt/ddpjob/agent.pyz worker -- true'
    agent = ["sh", "-c", run, guessed]
    job.kubectl.apply(
        pod("curious", images.digits, ["python3", "-c", INTRUDER, url, "a b c d"]),
        pod("impostor", images.agent, agent, impostor),
    )
    expected = ports_of(job)
    scan = ["python3", "-c", Path(strangers.__file__).read_text(), *expected]
    setting.elsewhere.apply(pod("stranger", images.digits, scan))
    curious, impostor_pod = (ended(job.kubectl, name) for name in ("curious", "impostor"))
    assert curious["exitCode"] == 0
    told = job.kubectl("logs", "curious")
    assert told == "403 X-DDPJob-Proof has no proof of the job's key\n"
    assert impostor_pod["exitCode"] == REFUSED
    assert ended(setting.elsewhere, "stranger")["exitCode"] == 0
    found = json.loads(setting.elsewhere("logs", "stranger"))
    # A network plugin that enforces policies lets nothing pass.
    assert [Answers(*each) for each in found] in ([*expected.values()], [Answers()] * len(found))
    assert job.causes() == told_before


def ports_of(job: Endless) -> dict[str, Answers]:
    """Return the ports on which the job's pods listen on their network, with what each answers."""
    found: dict[str, Answers] = {}
    for name, each in job.kubectl.pods(f"ddpjob.io/job={job.name}").items():
        table = job.kubectl("exec", name, "--", "cat", "/proc/net/tcp", "/proc/net/tcp6")
        rows = [line.split()[1:4] for line in table.splitlines() if ":" in line]
        listening = [local.split(":") for local, _, state in rows if state == LISTENING]
        ports = {int(port, 16) for address, port in listening if address != LOOPBACK}
        assert len(ports) == 1, f"{name} has a port that SECURITY.md does not have: {ports}"
        answers = (
            SERVICE
            if each["metadata"]["labels"]["ddpjob.io/role"] == "rendezvous"
            else CONNECTIVITY
        )
        found |= {f"{each['status']['podIP']}:{port}": answers for port in ports}
    return found


def scaled_up_and_down(job: Endless, setting: Setting) -> None:
    told, restarts, uids = job.causes(), job.status["restarts"], job.uids()
    job.kubectl("scale", "ddp/probe", "--replicas=3")
    job.until_world(3)
    assert {name: job.uids()[name] for name in uids} == uids
    job.kubectl("scale", "ddp/probe", "--replicas=1")
    job.until_world(1)
    job.kubectl.until(lambda: len(job.workers()) == 1, "one worker")
    job.until_causes([*told, "WorkerJoined", "WorkerLeft"])
    assert job.status["restarts"] == restarts


def scaled_to_nothing_and_back(job: Endless, setting: Setting) -> None:
    told = job.causes()
    job.kubectl("scale", "ddp/probe", "--replicas=0")
    job.kubectl("wait", "--for=condition=Suspended", "ddp/probe", "--timeout=180s")
    job.kubectl.until(lambda: not _left(job, "pods"), "no pod, not even one that is ending")
    job.kubectl("scale", "ddp/probe", "--replicas=2")
    job.until_world(2)
    job.until_causes([*told, "Suspended", "Resumed", "Started"])


def deleted_leaves_nothing(job: Endless, setting: Setting) -> None:
    job.kubectl("delete", "ddp", "probe", "--timeout=180s")
    job.kubectl.until(lambda: not _left(job, "pods") + _left(job, "services"), "nothing left")


def _left(job: Endless, kind: str) -> list[Object]:
    found: list[Object] = job.kubectl.get(kind, labelSelector=f"ddpjob.io/job={job.name}")
    return found


@stories(
    (
        seen_by_a_user,
        shows_a_viewer_no_key,
        applied_twice_changes_nothing,
        refuses_a_pod_without_a_key,
        scaled_up_and_down,
        scaled_to_nothing_and_back,
        deleted_leaves_nothing,
    )
)
def test_a_job_that_runs(
    kubectl: Kubectl,
    images: Images,
    operator: Kubectl,
    others: Others,
    subtests: pytest.Subtests,
    story: Sequence[Scene],
) -> None:
    kubectl.apply(endless(images.digits, "probe", replicas=2, maxReplicas=4))
    job = Endless(kubectl, "probe")
    job.until_world(2)
    job.until_causes(["Started"])
    assert job.status["restarts"]["total"] == 0
    setting = Setting(images, operator, others.elsewhere)
    for action in story:
        with happening(subtests, action):
            action(job, setting)


class Others(NamedTuple):
    """Where the other jobs of this file are."""

    here: Kubectl
    elsewhere: Kubectl


@pytest.fixture(scope="module")
def others(namespace: Callable[[], Kubectl], images: Images) -> Others:
    """They begin at the same time."""
    others = Others(namespace(), namespace())
    broken = endless(images.digits, "broken", replicas=1)
    broken["spec"]["command"] = ["python3", "-c", "raise ValueError('no data')"]
    broken["spec"]["failurePolicy"] = {"maxRestarts": {"application": 0}}
    others.here.apply(
        broken,
        endless(images.digits, "brief", replicas=2, seconds=1),
        *(endless(images.digits, name, replicas=1) for name in ("first", "second")),
    )
    others.elsewhere.apply(endless(images.digits, "first", replicas=2))
    return others


def test_done_within_its_time(others: Others) -> None:
    kubectl = others.here
    waited = kubectl.ddpjob("wait", "brief", "--timeout", "300")
    assert waited.returncode == ExitCode.OK, waited.stderr
    job = Endless(kubectl, "brief")
    kubectl.until(lambda: not job.uids(), "no pod: they succeeded, so none is kept")
    job.until_causes(["Started", "Completed"])


def test_job_that_fails_keeps_its_pods_and_says_why(others: Others) -> None:
    kubectl = others.here
    waited = kubectl.ddpjob("wait", "broken", "--timeout", "300")
    assert waited.returncode == ExitCode.JOB_FAILED, waited.stderr
    assert "ValueError: no data" in waited.stderr
    told = kubectl("describe", "ddp", "broken")
    assert "ValueError: no data" in told
    job = Endless(kubectl, "broken")
    kubectl.until(lambda: len(job.uids()) == 1, "the worker that failed")
    [name] = job.uids()
    for option in (["--failed"], ["--all"], ["--worker", name], ["-f"]):
        logs = kubectl.ddpjob("logs", "broken", *option)
        assert logs.returncode == ExitCode.OK, logs.stderr
        assert "ValueError: no data" in logs.stdout
    described = kubectl.ddpjob("describe", "broken")
    assert described.returncode == ExitCode.OK, described.stderr
    assert "ValueError: no data" in described.stdout
    assert name in described.stdout


def test_several_jobs_at_once_and_the_same_name_elsewhere(others: Others) -> None:
    kubectl, elsewhere = others
    worlds = {(kubectl, "first"): 1, (kubectl, "second"): 1, (elsewhere, "first"): 2}
    for (where, name), size in worlds.items():
        Endless(where, name).until_world(size)
    kubectl("delete", "ddp", "first", "--timeout=180s")
    for where, name in ((kubectl, "second"), (elsewhere, "first")):
        assert Endless(where, name).status["state"] == "Running"
        Endless(where, name).until_causes(["Started"])


INTRUDER = """
import json, sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"X-DDPJob-Proof": sys.argv[2]})
try:
    urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["error"])
"""


REFUSED = 4  # docs/exit-codes.md
LISTENING, LOOPBACK = "0A", "0100007F"  # as /proc/net/tcp has them


def pod(name: str, image: str, command: list[str], env: dict[str, str] | None = None) -> Object:
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    container = {"name": "main", "image": image, "command": command, "env": variables}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def ended(kubectl: Kubectl, name: str) -> Object:
    """How the pod's container ended, once it has."""

    def look() -> Object | None:
        statuses = kubectl.get("pods", name)["status"].get("containerStatuses") or [{}]
        found: Object | None = statuses[0].get("state", {}).get("terminated")
        return found

    return kubectl.until(look, f"the end of {name}")
