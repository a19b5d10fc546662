"""Jobs without torch, that are quick to start: each process steps until it is told to end."""

from __future__ import annotations

from typing import Any

from e2e.kubectl import Kubectl, Object

STEPS = """
import json, os, socket, sys, time
agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end = time.monotonic() + float(sys.argv[1])
step = 0
while time.monotonic() < end:
    step += 1
    report = {"event": "step", "step": step, "total": 1000000}
    agent.sendto(json.dumps(report).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
    time.sleep(0.1)
"""

OF_A_SLOW_MACHINE = {"RendezvousReplaced", "StartSlow", "SnapshotNotShared"}


def endless(image: str, name: str, seconds: float = 100_000, **spec: Any) -> Object:
    """A job that runs for so long."""
    return {
        "apiVersion": "ddpjob.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {
            "image": image,
            "command": ["python3", "-c", STEPS, str(seconds)],
            "launcher": "python",
            "elastic": {"joinPolicy": "Immediate", "settleSeconds": 1},
            **spec,
        },
    }


class Endless:
    """One such job, as kubectl shows it."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.name = name

    @property
    def object(self) -> Object:
        """The whole job."""
        found: Object = self.kubectl.get("ddpjobs", self.name)
        return found

    @property
    def status(self) -> Object:
        """What the operator last wrote."""
        status: Object = self.object.get("status", {})
        return status

    def condition(self, kind: str) -> Object:
        """A condition, or nothing."""
        return next((c for c in self.status.get("conditions", []) if c["type"] == kind), {})

    def uids(self) -> dict[str, str]:
        """UID of every pod of the job."""
        pods = self.kubectl.pods(f"ddpjob.io/job={self.name}")
        return {name: pod["metadata"]["uid"] for name, pod in pods.items()}

    def workers(self) -> list[str]:
        """Names of its workers."""
        return list(self.kubectl.pods(f"ddpjob.io/job={self.name},ddpjob.io/role=worker"))

    def causes(self) -> list[str]:
        """Reasons of its events, in order, without those that a slow machine adds."""
        told = self.kubectl.events(self.name)
        return [reason for reason, _ in told if reason not in OF_A_SLOW_MACHINE]

    def until_causes(self, expected: list[str]) -> None:
        """Wait for exactly these events: the operator posts them after it has written the status."""
        self.kubectl.until(lambda: self.causes() == expected, f"the events {expected}")

    def until_world(self, size: int) -> None:
        """So many processes train together."""

        def there() -> bool:
            status = self.status
            membership = status.get("membership", {})
            return status.get("state") == "Running" and membership.get("worldSize") == size

        self.kubectl.until(there, f"a world of {size}")
