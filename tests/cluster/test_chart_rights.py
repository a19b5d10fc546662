"""The real operator, with no other rights than those that the chart gives it.

May not: reach a rendezvous service, which nothing runs here, nor give the operator more rights.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cluster.charting import CHART, NAMESPACE, RELEASE, Helm, pod_of, render
from cluster.control_plane import ApiServer, build_programs
from ddpjob_operator.local.service import free_port

HERE = "rights"  # the namespace of the job
PATIENCE_SECONDS = 120.0
JOB = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "one", "namespace": HERE},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 2},
}


@pytest.fixture(scope="module")
def helm(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    folder = tmp_path_factory.mktemp("helm")
    apiserver.kubectl("create", "namespace", HERE)
    return Helm(build_programs("helm", "kubectl"), folder, apiserver.kubeconfig)


@contextlib.contextmanager
def installed(helm: Helm, settings: list[str]) -> Iterator[None]:
    options = [word for setting in settings for word in ("--set", setting)]
    where = ("--namespace", NAMESPACE, "--create-namespace")
    helm.run("install", RELEASE, str(CHART), *where, "--set", "crds.keep=false", *options)
    try:
        helm.kubectl("wait", "--for=condition=Established", "crd/ddpjobs.ddpjob.io")
        yield
    finally:
        helm.kubectl("delete", "ddpjobs,pods,services,events", "--all", "--namespace", HERE)
        helm.run("uninstall", RELEASE, "--namespace", NAMESPACE)
        helm.kubectl("wait", "--for=delete", "crd/ddpjobs.ddpjob.io", "--timeout=60s")


def eventually(true: Callable[[], bool], what: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"never: {what}\n{log.read_text()[-3000:]}"
        time.sleep(0.2)


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
    helm: Helm, apiserver: ApiServer, tmp_path: Path, settings: list[str]
) -> None:
    def there(*arguments: str) -> int:
        return len(helm.kubectl("get", *arguments, "-n", HERE, "-o", "name").split())

    log, kubeconfig = tmp_path / "log", tmp_path / "kubeconfig"
    with installed(helm, settings):
        access = yaml.safe_load(apiserver.kubeconfig.read_text())
        token = helm.kubectl("create", "token", RELEASE, "--namespace", NAMESPACE)
        access["users"][0]["user"] = {"token": token.strip()}
        kubeconfig.write_text(yaml.safe_dump(access))
        [container] = pod_of(render(helm, settings))["containers"]
        health = free_port()
        ports = (f"--health-port={health}", f"--metrics-port={free_port()}")
        with log.open("wb") as output:
            operator = subprocess.Popen(
                [
                    Path(sys.executable).with_name("ddpjob"),
                    *(word for word in container["args"] if "-port=" not in word),
                    *(f"--kubeconfig={kubeconfig}", *ports),
                ],
                stdout=output,
                stderr=output,
            )
        try:
            eventually(lambda: answers(health, "/readyz"), "ready", log)
            helm.kubectl("create", "-f", "-", stdin=json.dumps(JOB))
            eventually(lambda: there("pods") == 3, "two workers and a rendezvous pod", log)
            assert there("services") == 1
            eventually(lambda: there("ddp", "--field-selector=status.state!=") == 1, "status", log)
            suspend = json.dumps({"spec": {"suspend": True}})
            helm.kubectl("patch", "ddp", "one", "-n", HERE, "--type=merge", "--patch", suspend)
            eventually(lambda: there("pods") == 0, "no pods once suspended", log)
            eventually(lambda: there("events") > 0, "an event", log)
            operator.terminate()
            assert operator.wait(60) == 0, log.read_text()
        finally:
            operator.kill()
            operator.wait()
