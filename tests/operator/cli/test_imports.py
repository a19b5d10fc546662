"""Commands import what they need and no more, so that they start quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.http_server import kubeconfig

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "digits" / "ddpjob.yaml"
PYTORCHJOB = Path(__file__).parents[1] / "convert" / "files" / "fixed.yaml"
RUN = """
import atexit, sys
from ddpjob_operator.cli.main import main
atexit.register(lambda: print("\\n", *sorted(sys.modules), file=sys.stderr))
main()
"""
LIST = """
import sys
from ddpjob_trainer.__main__ import main
main(sys.argv[1:])
print("\\n", *sorted(sys.modules), file=sys.stderr)
"""
NEVER = {"kopf", "aiohttp", "torch", "numpy", "prometheus_client"}
CLUSTER = {"kubernetes", "urllib3"}
MODELS = {"ddpjob_operator.api.spec"}
OAUTH = {"oauthlib", "requests", "requests_oauthlib"}
LOCAL = {"asyncio", "ddpjob_operator.local.backend", "psutil"}


def imported(script: str, *arguments: str) -> set[str]:
    """The modules of a process at its end."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("operator", "trainer-image")),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "needed", "unneeded"),
    [
        ("--help", "rich", NEVER | CLUSTER | MODELS | LOCAL),
        ("version", "importlib.metadata", NEVER | CLUSTER | MODELS | LOCAL),
        (f"validate {JOB}", "ddpjob_operator.api.spec", NEVER | CLUSTER | LOCAL | {"rich"}),
        (f"convert {PYTORCHJOB}", "ddpjob_operator.convert", NEVER | CLUSTER | LOCAL | {"rich"}),
        ("get --help", "ddpjob_operator.cli.jobs.access", NEVER | CLUSTER | MODELS),
        ("logs --help", "ddpjob_operator.cli.jobs.access", NEVER | CLUSTER | MODELS),
        ("get --kubeconfig CONFIG", "kubernetes", NEVER | MODELS | OAUTH | {"rich"}),
        ("explain WorkerSilent", "ddpjob_operator.api.reasons", NEVER | CLUSTER | MODELS | LOCAL),
        ("doctor --help", "ddpjob_operator.cli.doctor", NEVER | CLUSTER),
        ("run --help", "ddpjob_operator.local", {"kopf", "kubernetes", "torch"}),
    ],
)
def test_a_command_imports_only_what_it_needs(
    arguments: str, needed: str, unneeded: set[str], tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    found = imported(RUN, *arguments.replace("CONFIG", config).split())
    assert needed in found
    assert found & unneeded == set()


LATER = """
from ddpjob_operator.cli.jobs.kubernetes_import import config
session = config.kube_config.OAuth2Session(client_id="me")
errors = config.kube_config.oauthlib.oauth2.rfc6749.errors
from kubernetes.stream.ws_client import should_bypass_proxies
import oauthlib.oauth2, requests, requests_oauthlib
assert type(session) is requests_oauthlib.OAuth2Session
assert errors is oauthlib.oauth2.rfc6749.errors
assert should_bypass_proxies("http://a", no_proxy="a") is requests.utils.should_bypass_proxies("http://a", no_proxy="a")
assert requests.get
"""


def test_packages_that_few_kubeconfigs_need_are_imported_when_they_are_used() -> None:
    subprocess.run([sys.executable, "-c", LATER], check=True)


WITHOUT_EXTRA = """
import sys
sys.modules.update(dict.fromkeys(["kopf", "kubernetes", "prometheus_client", "urllib3"]))
from ddpjob_operator.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (f"validate {JOB}", 0),
        ("run --help", 0),
        ("report --help", 0),
        (f"convert {PYTORCHJOB}", 0),
        ("get --kubeconfig CONFIG", 2),
        ("doctor --kubeconfig CONFIG", 2),
        ("operator run --agent-image x --kubeconfig CONFIG", 2),
    ],
)
def test_only_commands_for_a_cluster_need_the_extra(
    arguments: str, code: int, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    words = arguments.replace("CONFIG", config).split()
    command = [sys.executable, "-c", WITHOUT_EXTRA, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("install it with `pip install 'ddpjob[cluster]'`" in done.stderr) == (code == 2)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["", "s3://bucket/jobs/digits"])
def test_a_list_of_snapshots_needs_no_torch(place: str, tmp_path: Path) -> None:
    found = imported(LIST, "list", place or str(tmp_path))
    assert "ddpjob_trainer.snapshots.storage.bucket" in found
    assert "torch" not in found
