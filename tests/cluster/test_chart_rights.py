"""The real operator, with no other rights than those that the chart gives it.

May not: reach a rendezvous service, which nothing runs here, nor give the operator more rights.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cluster.charting import CHART, NAMESPACE, RELEASE, Helm, options, pod_of, render
from cluster.conftest import wait_until_deleted, wait_until_served
from cluster.control_plane import ControlPlane, eventually
from cluster.jobs import Jobs
from cluster.people import token_of
from ddpjob_operator.api.status import Condition
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from support.builders import NOW, make_status

HERE = "rights"  # the namespace of the job
CORE = f"/api/v1/namespaces/{HERE}"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{HERE}/networkpolicies"
JOB = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "one"},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 2},
}


@pytest.fixture(scope="module")
def here(apiserver: ControlPlane) -> Jobs:
    """No jobs yet."""
    apiserver.create_namespace(HERE)
    return Jobs(apiserver, HERE)


@contextlib.contextmanager
def installed(installer: Helm, here: Jobs, settings: list[str]) -> Iterator[None]:
    where = ("--namespace", NAMESPACE, "--create-namespace")
    installer.run("install", RELEASE, str(CHART), *where, *options(["crds.keep=false", *settings]))
    try:
        wait_until_served(here.server)
        yield
    finally:
        core = (f"{CORE}/pods", f"{CORE}/services", f"{CORE}/events")
        for path in (here.path, *core, POLICIES):
            here.server.send("DELETE", path)
        installer.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        wait_until_deleted(here.server)


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


@pytest.mark.parametrize(
    "settings", [[], [f"watchNamespaces={{{HERE}}}"]], ids=["cluster", "namespace"]
)
def test_its_rights_are_enough(
    helm: Helm, installer: Helm, here: Jobs, tmp_path: Path, settings: list[str]
) -> None:
    server = here.server
    log, kubeconfig = tmp_path / "log", tmp_path / "kubeconfig"

    def count(what: str) -> int:
        return len(server.get(f"{CORE}/{what}")["items"])

    def until(true: Callable[[], bool], what: str) -> None:
        eventually(true, what, lambda: log.read_text()[-3000:])

    with installed(installer, here, settings):
        access = yaml.safe_load(server.kubeconfig.read_text())
        access["users"][0]["user"] = {"token": token_of(server, RELEASE, NAMESPACE)}
        kubeconfig.write_text(yaml.safe_dump(access))
        [container] = pod_of(render(helm, settings))["containers"]
        health = free_port()
        ports = (f"--health-port={health}", f"--metrics-port={free_port()}")
        (tmp_path / "key").write_text("0" * 64)
        with log.open("wb") as output:
            operator = subprocess.Popen(
                [
                    Path(sys.executable).with_name("ddpjob"),
                    *(word for word in container["args"] if "-port=" not in word),
                    *(f"--kubeconfig={kubeconfig}", f"--key-file={tmp_path / 'key'}", *ports),
                ],
                stdout=output,
                stderr=output,
            )
        try:
            until(lambda: answers(health, "/readyz"), "ready")
            here.create(JOB)
            until(lambda: count("pods") == 3, "two workers and a rendezvous pod")
            assert count("services") == 1
            assert [each["metadata"]["name"] for each in server.get(POLICIES)["items"]] == [
                "one-pods"
            ]
            until(lambda: here.names("status.state!=") == ["one"], "status")
            server.send("PATCH", f"{here.path}/one", {"spec": {"suspend": True}})
            until(lambda: count("pods") == 0, "no pods once suspended")
            until(lambda: count("events") > 0, "an event")
            complete = Condition(type="Complete", status="True", reason="Completed")
            here.write_status(make_status(conditions=(complete,), completion_time=NOW), "one")
            server.send("PATCH", f"{here.path}/one", {"spec": {"ttlSecondsAfterFinished": 1}})
            until(lambda: not here.names(), "the finished job is deleted")
            operator.terminate()
            assert operator.wait(60) == 0, log.read_text()
        finally:
            operator.kill()
            operator.wait()
