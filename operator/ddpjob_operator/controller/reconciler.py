"""One pass over one job: observe, plan, execute, write the status, post the events.

If a pass dies at any point, the next pass observes again. May not: decide, or keep state that a pass
needs.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.stored_job import JobReader, StoredJob
from ddpjob_operator.controller.contested import Contested
from ddpjob_operator.controller.metrics import Metrics
from ddpjob_operator.controller.objects.cluster import Cluster, Create, Observation
from ddpjob_operator.controller.objects.creations import AT_ONCE, Creation, Creations
from ddpjob_operator.controller.settled import Settled, plan_again
from ddpjob_operator.planner.actions import (
    Action,
    CreateNetworkPolicy,
    CreateRendezvous,
    CreateService,
    CreateWorker,
    DeleteJob,
    DeleteRendezvous,
    DeleteWorker,
)
from ddpjob_operator.planner.observed import Observed, Rejection
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_operator.planner.status import conditions, status_builder
from ddpjob_operator.rendezvous.session import RendezvousSession
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import Expectation

REFUSED_SECONDS = 10.0  # until a deletion that failed, or a name that is taken, is tried again
EXPECT_SECONDS = 0.5  # until an unanswered expectation is sent again

log = logging.getLogger("ddpjob.reconciler")


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class Reconciler:
    """A runner of passes over jobs."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        at_once: int = AT_ONCE,
    ) -> None:
        """`at_once`: requests of one job at the same time."""
        self._cluster = cluster
        self._creations = Creations(clock, at_once)
        self._contested = Contested(clock)
        self._reader = JobReader()
        self._settled = Settled()
        self._now = now
        self._metrics = metrics

    def is_news(self, key: Key, version: str) -> bool:
        """Return whether this version of a job needs a pass."""
        return not self._settled.covers(key, version)

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return the seconds until the next pass, or None."""
        raw = await self._cluster.jobs.read(*key)
        if raw is None:
            self._forget(key)
            return None
        now = self._now()
        stored = self._reader.read(raw)
        if stored.job is None:
            return await self._report_invalid(key, raw, stored, now)
        metadata = stored.job.metadata
        if metadata.deletion_timestamp is not None and not metadata.is_held:
            self._forget(key)
            return None
        return await self._reconcile_job(key, raw, stored, stored.job, now)

    async def _reconcile_job(
        self, key: Key, raw: dict[str, Any], stored: StoredJob, job: DDPJob, now: datetime
    ) -> float | None:
        if stored.ended and not conditions.finished(job.status.conditions):
            log.warning("%s/%s: left alone: it has ended, its conditions cannot be read", *key)
            return None
        seen = await self._cluster.observe(job, stored.problems)
        if seen.session is not None and seen.session.awaiting_first_report:
            return None  # avoids the state Unknown at each start of the operator
        planned = plan(seen.observed, now)
        if DeleteJob() in planned.actions:
            log.info("%s/%s: deleted: ttlSecondsAfterFinished is over", *key)
            await self._cluster.jobs.delete(raw)
            return None
        new = [action for action in planned.actions if isinstance(action, CreateWorker)]
        if await self._cluster.fresh_pods.differ(job, seen.pods, new):
            return 0
        rejections = await self._execute(key, job, seen, planned)
        _log_first_pods(key, seen.observed, planned.actions, rejections)
        after = planned.requeue_after
        if rejections:
            planned = plan(_with(seen.observed, rejections), now)
            pause = self._creations.seconds_left(key)
            after = _earliest(after, REFUSED_SECONDS if pause is None else pause)
        if not await _send(planned.expectation, seen.session):
            after = _earliest(after, EXPECT_SECONDS)
        if planned.status != job.status:
            pause = self._contested.seconds_left(key, raw.get("status") or {})
            if pause > 0:
                return pause
            status = stored.status_to_write(planned.status)
            written = await self._cluster.jobs.write_status(raw, status)
            self._contested.wrote(key, written.get("status") or {})
            if not rejections:
                after = _earliest(after, self._settle(key, seen.observed, planned, written, now))
        for event in planned.events:
            log.info("%s/%s: %s: %s", *key, event.reason, event.message)
            self._metrics.events.labels(event.reason).inc()
            await self._cluster.jobs.emit(raw, event, now)
        self._metrics.jobs.update(key, job, planned.status, seen.observed.report)
        return after

    def _settle(
        self, key: Key, observed: Observed, planned: Plan, written: dict[str, Any], now: datetime
    ) -> float | None:
        """Note whether a status that was written needs a pass; return the seconds until the next."""
        job = self._reader.read(written).job
        again = None if job is None else plan_again(observed, planned, job, now)
        if again is None:
            return None
        self._settled.note(key, written)
        return again.requeue_after

    # --- acting -----------------------------------------------------------------------------------

    async def _execute(
        self, key: Key, job: DDPJob, seen: Observation, plan: Plan
    ) -> list[Rejection]:
        """Execute the actions of a plan; return those that the API server did not execute.

        One that fails does not stop the others.
        """
        rejections: list[Rejection] = []
        # Of each group, and of the rendezvous pods without a name: a rejected Secret delays new pods.
        workers: defaultdict[str, list[CreateWorker]] = defaultdict(list)
        secrets: defaultdict[str, list[Creation]] = defaultdict(list)
        deletions: list[DeleteWorker] = []
        for pod in self._cluster.without_secret(job, seen):
            send = partial(self._cluster.create_secret, job, pod, seen.key)
            secrets[pod.worker.group if pod.worker else ""].append(Creation(pod.name, send))

        async def create(
            kind: str, actions: Sequence[Create], before: Sequence[Creation] = ()
        ) -> list[Rejection]:
            new = [
                Creation(_name_of(job, each), partial(self._cluster.create, job, each, seen.key))
                for each in actions
            ]
            return await self._creations.create(key, job.metadata.generation, kind, [*before, *new])

        for action in plan.actions:
            match action:
                case CreateWorker():
                    workers[action.group].append(action)
                case DeleteWorker():
                    deletions.append(action)
                case DeleteRendezvous():
                    rejections += await self._creations.send_at_once(
                        [partial(self._cluster.delete, job, seen, action)]
                    )
                case CreateNetworkPolicy() | CreateService() | CreateRendezvous():
                    rejections += await create(type(action).__name__, [action])
        rejections += await self._creations.send_at_once(
            partial(self._cluster.delete, job, seen, d) for d in deletions
        )
        for group in dict.fromkeys((*secrets, *workers)):
            rejections += await create(f"pods of {group}", workers[group], secrets[group])
        return rejections

    async def _report_invalid(
        self, key: Key, raw: dict[str, Any], stored: StoredJob, now: datetime
    ) -> float | None:
        """Report that the spec cannot be read; a job that has ended stays as it is."""
        status = stored.status
        if not stored.ended:
            generation = raw["metadata"].get("generation", 0)
            status = status_builder.build_invalid_status(
                stored.status, generation, stored.problems, now
            )
        if status != stored.status:
            await self._cluster.jobs.write_status(raw, stored.status_to_write(status))
        self._metrics.jobs.update(key, None, status, None)
        return None

    def _forget(self, key: Key) -> None:
        self._creations.forget(key)
        self._contested.forget(key)
        self._reader.forget(key)
        self._settled.forget(key)
        self._cluster.forget(key)
        self._metrics.jobs.forget(key)


def _with(observed: Observed, rejections: Iterable[Rejection]) -> Observed:
    """Return the observation with the rejections; that of the NetworkPolicy delays no pod."""
    policy = constants.policy_name(observed.job.metadata.name)
    problems = [each.message for each in rejections if each.name == policy]
    others = tuple(each for each in rejections if each.name != policy)
    return dataclasses.replace(
        observed, rejections=others, policy_problem=problems[0] if problems else ""
    )


def _name_of(job: DDPJob, action: Create) -> str:
    if isinstance(action, CreateNetworkPolicy):
        return constants.policy_name(job.metadata.name)
    if isinstance(action, CreateService):
        return constants.service_name(job.metadata.name)
    return action.name


def _log_first_pods(
    key: Key, observed: Observed, actions: Iterable[Action], rejections: Sequence[Rejection]
) -> None:
    """Log the creation of the workers of a job that has none."""
    new = [action for action in actions if isinstance(action, CreateWorker)]
    created = len(new) - sum(each.name in {refused.name for refused in rejections} for each in new)
    if created and not observed.workers:
        log.info("%s/%s: created the first pods workers=%d", *key, created)


async def _send(expectation: Expectation | None, session: RendezvousSession | None) -> bool:
    """Send the expectation, if any; return False if the service does not answer."""
    return expectation is None or (session is not None and await session.expect(expectation))


def _earliest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)
