"""kubectl, as a user has it, and waiting for what it shows."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kubernetes.config import new_client_from_config

PATIENCE_SECONDS = 600.0  # generous: the machine may be slow and shared
POLL_SECONDS = 0.5
DDPJOB = Path(sys.executable).with_name("ddpjob")

APIS = {"ddpjobs": "apis/ddpjob.io/v1alpha1"}  # of kinds that are not in the core

T = TypeVar("T")
Object = dict[str, Any]


@functools.cache
def _client(kubeconfig: Path) -> Any:
    return new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]


class Kubectl:
    """One cluster, and a namespace in it."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """What it prints; raises with what it complains of."""
        done = self.attempt(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def attempt(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The same, but a failure is an answer too."""
        head = ["kubectl", "--kubeconfig", str(self.kubeconfig), "-n", self.namespace]
        return subprocess.run(
            [*head, *arguments], input=stdin, capture_output=True, text=True, check=False
        )

    def ddpjob(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ddpjob` in this namespace, whatever comes of it."""
        end = ["--kubeconfig", str(self.kubeconfig), "-n", self.namespace]
        return subprocess.run(
            [DDPJOB, *arguments, *end], capture_output=True, text=True, check=False
        )

    def get(self, kind: str, name: str = "", *, everywhere: bool = False, **selectors: str) -> Any:
        """One object, or a list's items; over HTTP, for kubectl takes a while to start."""
        within = "" if everywhere or kind == "nodes" else f"/namespaces/{self.namespace}"
        path = f"/{APIS.get(kind, 'api/v1')}{within}/{kind}" + (f"/{name}" if name else "")
        found = json.loads(self._read(path, **selectors))
        return found if name else found["items"]

    def logs(self, pod: str, **options: str) -> str:
        """What the processes of a worker wrote."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return self._read(path, container="trainer", **options).decode()

    def _read(self, path: str, **query: str) -> bytes:
        client = _client(self.kubeconfig)
        request = client.param_serialize(
            "GET", path, query_params=query, auth_settings=["BearerToken"]
        )
        answer = client.call_api(*request)
        data: bytes = answer.read()
        assert answer.status == HTTPStatus.OK, f"GET {path}: {data.decode()}"
        return data

    def apply(self, *objects: Object) -> str:
        """Apply these; what is printed."""
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def pods(self, selector: str = "") -> dict[str, Object]:
        """Pods that are not about to go, by name."""
        found = self.get("pods", labelSelector=selector)
        return {p["metadata"]["name"]: p for p in found if not _deleting(p)}

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of what was told of a job, oldest first."""
        found = self.get("events", fieldSelector=f"involvedObject.name={name}")
        ours = [e for e in found if e["involvedObject"]["kind"] == "DDPJob"]
        ours.sort(key=lambda e: int(e["metadata"]["resourceVersion"]))
        return [(event["reason"], event["message"]) for event in ours]

    def until(
        self, look: Callable[[], T | None], what: str, patience: float = PATIENCE_SECONDS
    ) -> T:
        """Look until there is something to be seen; tells the state of all when there is not."""
        deadline = time.monotonic() + patience
        while not (seen := look()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {patience:.0f} s\n{self.picture()}")
            time.sleep(POLL_SECONDS)
        return seen

    def picture(self) -> str:
        """What a person would look at first."""
        return "\n".join(
            self.attempt(*words).stdout
            for words in (
                ("get", "ddpjobs,pods,services", "-o", "wide"),
                ("describe", "ddpjobs"),
                ("get", "events"),
            )
        )


def _deleting(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]
