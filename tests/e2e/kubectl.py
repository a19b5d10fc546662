"""kubectl, as a user has it, and waiting for what it shows."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

PATIENCE_SECONDS = 600.0  # generous: the machine may be slow and shared
POLL_SECONDS = 0.5

T = TypeVar("T")
Object = dict[str, Any]


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

    def get(self, *what: str) -> Any:
        """One object, or a list's items."""
        found = json.loads(self("get", *what, "-o", "json"))
        return found["items"] if found["kind"] == "List" else found

    def exists(self, *what: str) -> bool:
        """Whether it is there."""
        return bool(self("get", *what, "--ignore-not-found", "-o", "name").strip())

    def apply(self, *objects: Object) -> str:
        """Apply these; what is printed."""
        return self("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def pods(self, *selector: str) -> dict[str, Object]:
        """Pods that are not about to go, by name."""
        found = self.get("pods", *(f"--selector={each}" for each in selector))
        return {p["metadata"]["name"]: p for p in found if not _deleting(p)}

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of what was told of a job, oldest first."""
        found = self.get("events", f"--field-selector=involvedObject.name={name}")
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
