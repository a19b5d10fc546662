"""A test's view of a job: read through the API, as a user could."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddpjob_operator.api import constants

JSON = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class View:
    """The objects of one job by name, as the API server has them."""

    job: JSON
    pods: dict[str, JSON]
    services: list[str]

    @property
    def status(self) -> JSON:
        status: JSON = self.job.get("status", {})
        return status

    @property
    def state(self) -> str:
        return str(self.status.get("state", ""))

    @property
    def members(self) -> list[str]:
        """The workers of the membership in status."""
        return list((self.status.get("membership") or {}).get("workers", ()))

    @property
    def workers(self) -> list[str]:
        return self._of(constants.ROLE_WORKER)

    @property
    def rendezvous(self) -> list[str]:
        return self._of(constants.ROLE_RENDEZVOUS)

    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods.items()}

    def phases(self) -> dict[str, str]:
        return {name: self.pods[name]["status"]["phase"] for name in self.workers}

    def condition(self, kind: str) -> JSON:
        conditions = self.status.get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def is_stalled(self, reason: str) -> bool:
        found = self.condition("Stalled")
        return (found.get("status"), found.get("reason")) == ("True", reason)

    def trains(self, *workers: str) -> bool:
        """Return whether exactly these workers, by the ends of their names, exist and train."""
        wanted = [f"{self.job['metadata']['name']}-worker-{each}" for each in workers]
        return (
            self.state == "Running"
            and sorted(self.members) == self.workers == wanted
            and self.status["ready"] == f"{len(wanted)}/{len(wanted)}"
            and self.condition("Resizing").get("status") == "False"
        )

    def _of(self, role: str) -> list[str]:
        return sorted(
            name
            for name, pod in self.pods.items()
            if pod["metadata"]["labels"].get(constants.LABEL_ROLE) == role
        )
