"""The newest state of each job, and its part of the metrics page.

A job is added by its passes and removed when it is gone; its series follow from that. A pass also
renders the lines of its job, so that a scrape of many jobs does not block the event loop. A scrape
renders only the values that depend on the time.
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
from ddpjob_operator.controller.metrics.exposition import Sample, head, lines
from ddpjob_operator.controller.metrics.job_record import JobRecord
from ddpjob_operator.planner.status.conditions import STATES, is_true
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import Report

TIMED = (catalogue.GPU_SECONDS, catalogue.SNAPSHOT_AGE, catalogue.GOODPUT)


class JobStore:
    """The jobs of an operator."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._records: dict[Key, JobRecord] = {}
        # Rendered lines of each job.
        self._lines: dict[Metric, dict[Key, str]] = {
            metric: {} for metric in catalogue.JOB if metric not in TIMED
        }

    def update(
        self, key: Key, job: DDPJob | None, status: DDPJobStatus, report: Report | None
    ) -> None:
        """Record the result of a pass; `job` is None if its spec is invalid."""
        record = self._records.setdefault(key, JobRecord())
        record.update(job, status, report, self._clock())
        self._render(key, record)

    def forget(self, key: Key) -> None:
        """Remove a job."""
        self._records.pop(key, None)
        for of_metric in self._lines.values():
            of_metric.pop(key, None)

    def known(self) -> list[Key]:
        """Return all jobs."""
        return [*self._records]

    def page(self) -> str:
        """Return the metrics of all jobs as Prometheus reads them."""
        states = Counter(record.status.state for record in self._records.values())
        parts = [head(catalogue.JOBS)]
        parts += (lines(Sample(catalogue.JOBS, (state,), states[state])) for state in STATES)
        now = self._clock()
        for metric in catalogue.JOB:
            parts.append(head(metric))
            of_metric = self._lines.get(metric)
            parts += self._timed(metric, now) if of_metric is None else of_metric.values()
        return "".join(parts)

    def _render(self, key: Key, record: JobRecord) -> None:
        found = dict.fromkeys(self._lines, "")
        for sample in _samples(key, record):
            found[sample.metric] += lines(sample)
        for metric, text in found.items():
            self._lines[metric][key] = text

    def _timed(self, metric: Metric, now: float) -> Iterator[str]:
        for key, record in self._records.items():
            value = record.at(metric, now)
            if value is not None:
                yield lines(Sample(metric, key, value))


def _samples(key: Key, record: JobRecord) -> Iterator[Sample]:
    """Yield the samples that do not depend on the time."""
    for metric, labels, value in _plain(record):
        if value is not None:
            yield Sample(metric, (*key, *labels), value)
    for (metric, cause), seconds in record.durations.items():
        yield Sample(metric, (*key, cause), seconds.read())


def _plain(record: JobRecord) -> Iterator[tuple[Metric, tuple[str, ...], float | None]]:
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
    values = {
        catalogue.STEP: progress.step if progress else None,
        catalogue.TOTAL_STEPS: progress.total_steps if progress else None,
        catalogue.STEPS_PER_SECOND: progress.steps_per_second if progress else None,
        catalogue.WORLD_SIZE: status.membership.world_size if trains and status.membership else 0,
        catalogue.WANTED: sum(group.replicas for group in status.groups),
        catalogue.READY: sum(group.ready for group in status.groups),
        catalogue.GPUS: record.gpus,
        catalogue.REPEATED: status.restarts.repeated_steps,
        catalogue.SNAPSHOT_STEP: snapshot.step if snapshot else None,
        catalogue.WARNINGS: sum(each.ongoing for each in status.warnings),
    }
    for metric, value in values.items():
        yield metric, (), value
