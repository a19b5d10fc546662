"""The facts that the metrics of one job need beside its status: sums over memberships and time.

May not: read a clock, or use a fact that is neither in the status nor in the service's report.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.controller.metrics.catalogue import (
    DETECTION,
    FIRST_STEP,
    GPU_SECONDS,
    SNAPSHOT_AGE,
    STALL,
    Metric,
)
from ddpjob_operator.controller.metrics.exposition import Distribution
from ddpjob_protocol.messages.control import MembershipRecord, Report


class Seconds:
    """The durations of one histogram."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self._counts = dict.fromkeys((*bounds, math.inf), 0)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        for bound in self._counts:
            self._counts[bound] += seconds <= bound
        self._sum += seconds

    def read(self) -> Distribution:
        """Return the current values."""
        return Distribution(dict(self._counts), self._sum)


class JobRecord:
    """All that is known of a job."""

    def __init__(self) -> None:
        self.status = DDPJobStatus()
        self.durations: dict[tuple[Metric, str], Seconds] = {}  # by metric and cause
        self.memberships: Counter[str] = Counter()  # by cause
        self.gpus = 0
        self.snapshot_at: float | None = None
        self._gpu_seconds = 0.0
        self._updated: float | None = None
        self._gpus_of: tuple[int, Mapping[str, int]] = (-1, {})  # generation; GPUs by group
        self._counted: set[tuple[Metric | None, str]] = set()  # memberships, by metric
        self._training = Training()

    def update(
        self, job: DDPJob | None, status: DDPJobStatus, report: Report | None, now: float
    ) -> None:
        """Record the result of a pass; `job` is None if its spec is invalid."""
        self._gpu_seconds = self.gpu_seconds(now)
        self._updated = now
        if job is not None:
            self.gpus = self._held(job, status)
        old, new = self.status.snapshot, status.snapshot
        if new is not None and new.files_synced_at is not None:
            self.snapshot_at = new.files_synced_at.timestamp()
        elif new is not None and (old is None or old.step != new.step):
            self.snapshot_at = now
        self.status = status
        started = status.start_time.timestamp() if status.start_time else None
        records = report.memberships if report is not None else ()
        self._training.update(started, records)
        self._count(records)

    def gpu_seconds(self, now: float) -> float:
        """Return the GPU-seconds until now."""
        held = 0.0 if self._updated is None else max(0.0, now - self._updated) * self.gpus
        return self._gpu_seconds + held

    def at(self, metric: Metric, now: float) -> float | None:
        """Return a value that depends on the time; None if it is not known."""
        if metric is GPU_SECONDS:
            return self.gpu_seconds(now)
        if metric is SNAPSHOT_AGE:
            return None if self.snapshot_at is None else max(0.0, now - self.snapshot_at)
        return self.goodput(now)

    def goodput(self, now: float) -> float | None:
        """Return the share of the time that trained, or None if it is not known."""
        end = self.status.completion_time
        return self._training.share(now if end is None else end.timestamp())

    def _held(self, job: DDPJob, status: DDPJobStatus) -> int:
        if self._gpus_of[0] != job.metadata.generation:
            gpus = {group.name: group.gpus for group in job.spec.groups()}
            self._gpus_of = (job.metadata.generation, gpus)
        return sum(self._gpus_of[1].get(each.name, 0) * each.scheduled for each in status.groups)

    def _count(self, records: tuple[MembershipRecord, ...]) -> None:
        """Count each membership and each of its durations once, as soon as it is known."""
        known = {entry.membership: entry for entry in self.status.history}
        for id_, cause in {
            **{entry.membership: entry.cause for entry in self.status.history},
            **{record.id: record.cause for record in records},
        }.items():
            if self._first(None, id_):
                self.memberships[cause] += 1
        before: MembershipRecord | None = None
        for record in records:
            if record.first_step_at is not None:
                self._time(FIRST_STEP, record, record.first_step_at - record.since)
            if before is not None and before.last_step_at is not None:
                self._time(DETECTION, record, record.since - before.last_step_at)
            before = record
        for entry in known.values():
            if entry.stall_seconds is not None and self._first(STALL, entry.membership):
                self._histogram(STALL, entry.cause).add(entry.stall_seconds)
        if records:  # what a service has forgotten does not come back
            window = {*known, *(record.id for record in records)}
            self._counted = {each for each in self._counted if each[1] in window}

    def _time(self, metric: Metric, record: MembershipRecord, seconds: float) -> None:
        if self._first(metric, record.id):
            self._histogram(metric, record.cause).add(max(0.0, seconds))

    def _first(self, metric: Metric | None, id_: str) -> bool:
        if (metric, id_) in self._counted:
            return False
        self._counted.add((metric, id_))
        return True

    def _histogram(self, metric: Metric, cause: str) -> Seconds:
        return self.durations.setdefault((metric, cause), Seconds(metric.buckets))


@dataclasses.dataclass
class Training:
    """The time in which steps were done for the first time, since the job was started or resumed."""

    started: float | None = None
    since: float | None = None  # the first known membership
    steps: bool = False  # any were reported
    past: float = 0.0  # seconds of memberships that the service has forgotten
    current: dict[tuple[str, float], float] = dataclasses.field(default_factory=dict)
    earlier: set[tuple[str, float]] = dataclasses.field(default_factory=set)  # of a run before

    def update(self, started: float | None, records: Sequence[MembershipRecord]) -> None:
        """Add the newest report; `started` is None while the job is suspended."""
        if started != self.started:
            self.started, self.since, self.steps, self.past = started, None, False, 0.0
            self.earlier, self.current = self.earlier | set(self.current), {}
        keys = {(each.id, each.since) for each in records}
        if keys:
            self.earlier = keys if started is None else self.earlier & keys
        of_this_run = [each for each in records if (each.id, each.since) not in self.earlier]
        found = {(each.id, each.since): useful_seconds(each) for each in of_this_run}
        self.past += sum(s for key, s in self.current.items() if key not in found and found)
        self.current = found or self.current
        self.steps = self.steps or any(each.first_step is not None for each in of_this_run)
        if self.since is None and of_this_run:
            self.since = of_this_run[0].since

    def share(self, end: float) -> float | None:
        """Return the share of the time until `end`, or None without a reported step."""
        if self.since is None or not self.steps or end <= self.since:
            return None
        return min(1.0, (self.past + sum(self.current.values())) / (end - self.since))


def useful_seconds(record: MembershipRecord) -> float:
    """Return the seconds between the first and the last step of a membership, less the repeated ones."""
    if None in (record.first_step, record.first_step_at, record.last_step, record.last_step_at):
        return 0.0
    assert record.first_step is not None
    assert record.first_step_at is not None
    assert record.last_step is not None
    assert record.last_step_at is not None
    steps = record.last_step - record.first_step + 1
    if steps <= 0:
        return 0.0
    new = max(0.0, 1 - record.repeated_steps / steps)
    return max(0.0, record.last_step_at - record.first_step_at) * new
