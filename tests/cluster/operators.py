"""Operators as their users start them: processes, and what they write by the audit log."""

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
from typing import Any

from cluster.control_plane import ControlPlane
from ddpjob_operator.local.simulated.rendezvous_process import free_port

PATIENCE_SECONDS = 120.0
OPERATOR = Path(sys.executable).with_name("ddpjob")
JOB = {
    "apiVersion": "ddpjob.io/v1alpha1",
    "kind": "DDPJob",
    "metadata": {"name": "digits"},
    "spec": {"image": "trainer", "command": ["torchrun", "train.py"], "replicas": 2},
}


class Operator:
    """A running operator."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.health, self.metrics = free_port(), free_port()
        self.log = folder / "operator.log"
        ports = (f"--health-port={self.health}", f"--metrics-port={self.metrics}")
        with self.log.open("wb") as output:
            command = [str(OPERATOR), "operator", "run", "--agent-image=x", *ports, *options]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def get(self, path: str, port: int = 0) -> tuple[int, str]:
        """Status and text; (0, ...) when nobody answers."""
        url = f"http://127.0.0.1:{port or self.health}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            log = self.log.read_text()[-3000:]
            assert self.process.poll() is None, f"it ended before {what}\n{log}"
            assert time.monotonic() < deadline, f"never: {what}\n{log}"
            time.sleep(0.1)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Operator]:
    operator = Operator(folder, *options)
    try:
        yield operator
    finally:
        operator.process.kill()
        operator.process.wait()


def objects(apiserver: ControlPlane, path: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in apiserver.get(path)["items"]}


def audited(apiserver: ControlPlane) -> list[dict[str, Any]]:
    """All requests so far."""
    return [json.loads(line) for line in apiserver.audit_log.read_text().splitlines()]
