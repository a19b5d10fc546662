"""The result of a local run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ddpjob.errors import JobFailedError
from ddpjob_operator.api.status import DDPJobStatus

Entry = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class RunResult:
    """The end of a local run."""

    exit_code: int
    status: DDPJobStatus
    folder: Path  # logs/, snapshots/, status.json, report.json, timeline.jsonl

    @property
    def state(self) -> str:
        """The job's state in one word: Complete or Failed."""
        return self.status.state

    @property
    def step(self) -> int | None:
        """The last step, if the script reports steps."""
        return self.status.progress.step if self.status.progress else None

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric that the script reported."""
        return dict(self.status.progress.metrics) if self.status.progress else {}

    @property
    def reason(self) -> str:
        """The reason of the end and its explanation."""
        ended = [each for each in self.status.conditions if each.type == self.state]
        return f"{ended[0].reason}: {ended[0].message}" if ended else ""

    @property
    def timeline(self) -> list[Entry]:
        """The entries of timeline.jsonl: `at` in seconds, `kind`, `text`, and more by kind."""
        lines = (self.folder / "timeline.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """Return the steps of the timeline with the value of a metric."""
        return [
            (entry["step"], entry["metrics"][metric])
            for entry in self.timeline
            if metric in entry.get("metrics", {})
        ]

    def check(self) -> RunResult:
        """Return this result; raise JobFailedError if the job failed."""
        if self.state == "Failed":
            reason = self.reason.partition(":")[0]
            raise JobFailedError(f"{self.reason}\nlogs: {self.folder / 'logs'}", reason)
        return self
