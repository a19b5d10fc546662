"""The newest state of each job, and its samples.

A job is added by its passes and removed when it is gone; its series follow from that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from ddpjob_operator.api.constants import ConditionType
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.controller.metrics import catalogue
from ddpjob_operator.controller.metrics.catalogue import Metric
from ddpjob_operator.controller.metrics.collecting import Sample
from ddpjob_operator.controller.metrics.job_record import JobRecord
from ddpjob_operator.planner.status.conditions import STATES, is_true
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import Report


class JobStore:
    """The jobs of an operator."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._records: dict[Key, JobRecord] = {}

    def update(
        self, key: Key, job: DDPJob | None, status: DDPJobStatus, report: Report | None
    ) -> None:
        """Record the result of a pass; `job` is None if its spec is invalid."""
        record = self._records.setdefault(key, JobRecord())
        record.update(job, status, report, self._clock())

    def forget(self, key: Key) -> None:
        """Remove a job."""
        self._records.pop(key, None)

    def known(self) -> list[Key]:
        """Return all jobs."""
        return [*self._records]

    def samples(self) -> Iterator[Sample]:
        """Yield the current samples of all jobs."""
        now = self._clock()
        states = Counter(record.status.state for record in self._records.values())
        for state in STATES:
            yield Sample(catalogue.JOBS, (state,), states[state])
        for key, record in self._records.items():
            for metric, labels, value in _plain(record, now):
                if value is not None:
                    yield Sample(metric, (*key, *labels), value)
            for (metric, cause), seconds in record.durations.items():
                yield Sample(metric, (*key, cause), seconds.read())


def _plain(record: JobRecord, now: float) -> Iterator[tuple[Metric, tuple[str, ...], float | None]]:
    """Yield metric, labels beside the job's, and value; None if it is not known."""
    status = record.status
    for state in STATES:
        yield catalogue.STATE, (state,), float(state == status.state)
    yield catalogue.RESTART_COUNT, ("application",), status.restarts.application
    yield catalogue.RESTART_COUNT, ("infrastructure",), status.restarts.infrastructure
    for cause, count in record.memberships.items():
        yield catalogue.MEMBERSHIPS, (cause,), count
    progress, snapshot = status.progress, status.snapshot
    trains = is_true(status.conditions, ConditionType.RUNNING)
    age = None if record.snapshot_at is None else max(0.0, now - record.snapshot_at)
    values = {
        catalogue.STEP: progress.step if progress else None,
        catalogue.TOTAL_STEPS: progress.total_steps if progress else None,
        catalogue.STEPS_PER_SECOND: progress.steps_per_second if progress else None,
        catalogue.WORLD_SIZE: status.membership.world_size if trains and status.membership else 0,
        catalogue.WANTED: sum(group.replicas for group in status.groups),
        catalogue.READY: sum(group.ready for group in status.groups),
        catalogue.GPUS: record.gpus,
        catalogue.GPU_SECONDS: record.gpu_seconds(now),
        catalogue.REPEATED: status.restarts.repeated_steps,
        catalogue.SNAPSHOT_STEP: snapshot.step if snapshot else None,
        catalogue.SNAPSHOT_AGE: age,
        catalogue.GOODPUT: record.goodput(now),
        catalogue.WARNINGS: sum(each.ongoing for each in status.warnings),
    }
    for metric, value in values.items():
        yield metric, (), value
