"""One pass over one job: observe, plan, execute, write the status, post the events.

If a pass dies at any point, the next pass observes again. May not: decide, or keep state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from ddpjob_operator.api import constants
from ddpjob_operator.api.errors import explain_errors
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.controller.cluster import Cluster
from ddpjob_operator.controller.metrics import Metrics
from ddpjob_operator.kube.interface import ApiError, ApiServer, UnreachableError
from ddpjob_operator.planner import status_builder
from ddpjob_operator.planner.actions import (
    Action,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Expect,
)
from ddpjob_operator.planner.observed import Observed, Rejection
from ddpjob_operator.planner.planner import plan
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    Transport,
    connect_directly,
)
from ddpjob_operator.rendezvous.report_poller import Key, ReportPoller
from ddpjob_protocol.control import Expectation, Report

CREATES_AT_ONCE = 8  # creations of one job
REFUSED_SECONDS = 10.0  # until a rejected creation is tried again
EXPECT_SECONDS = 0.5  # until an unanswered expectation is sent again

log = logging.getLogger("ddpjob.reconciler")


class Reconciler:
    """A runner of passes over jobs."""

    def __init__(
        self,
        cluster: Cluster,
        followers: ReportPoller,
        metrics: Metrics,
        transport_for: Callable[[Key], Transport],
    ) -> None:
        self._cluster = cluster
        self._followers = followers
        self._metrics = metrics
        self._transport_for = transport_for
        self._sent: dict[Key, tuple[str, int, int, Expectation]] = {}  # by UID, term, boot
        self._states: dict[Key, str] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return the seconds until the next pass, or None."""
        raw = await self._cluster.job(*key)
        if raw is None:
            self._forget(key)
            return None
        now = datetime.now(UTC)
        try:
            job = DDPJob.model_validate(raw, by_alias=True, by_name=False)
        except ValidationError as error:
            return await self._write_invalid(raw, error, now)
        if job.metadata.deletion_timestamp is not None:
            self._forget(key)
            return None
        return await self._reconcile_job(key, raw, job, now)

    async def _reconcile_job(
        self, key: Key, raw: dict[str, Any], job: DDPJob, now: datetime
    ) -> float | None:
        observed = await self._cluster.observe(job)
        token = self._cluster.token(job)
        observed = dataclasses.replace(observed, report=self._report(key, observed, token))
        if self._followers.awaiting_first_report(key):
            return None  # avoids the state Unknown at each start of the operator
        planned = plan(observed, now)
        rejections = await self._execute(job, planned.actions, token)
        after = planned.requeue_after
        if rejections:
            planned = plan(dataclasses.replace(observed, rejections=tuple(rejections)), now)
            after = _earlier(after, REFUSED_SECONDS)
        silent = not await self._send_expectation(key, job, planned.actions)
        if silent:
            after = _earlier(after, EXPECT_SECONDS)
        if planned.status != job.status:
            await self._cluster.write_status(raw, planned.status.to_json())
        for event in planned.events:
            log.info("%s/%s: %s: %s", *key, event.reason, event.message)
            self._metrics.events.labels(event.reason).inc()
            await self._cluster.emit(raw, event)
        self._count(key, planned.status.state)
        return after

    # --- acting -----------------------------------------------------------------------------------

    async def _execute(self, job: DDPJob, actions: Iterable[Action], token: str) -> list[Rejection]:
        """Execute actions on the cluster, each group at once; return the rejections."""
        rejections: list[Rejection] = []
        creations = []
        for action in actions:
            match action:
                case Expect():
                    pass  # sent after the rejections are known
                case DeleteWorker() | DeleteRendezvous():
                    await self._cluster.delete(job, action)
                case CreateWorker():
                    creations.append(action)
                case _:
                    rejections += filter(None, [await self._cluster.create(job, action, token)])
        limit = asyncio.Semaphore(CREATES_AT_ONCE)

        async def create(action: CreateWorker) -> Rejection | None:
            async with limit:
                return await self._cluster.create(job, action, token)

        for _, group in itertools.groupby(creations, key=lambda action: action.group):
            rejections += filter(None, await asyncio.gather(*map(create, group)))
        return rejections

    async def _send_expectation(self, key: Key, job: DDPJob, actions: Iterable[Action]) -> bool:
        """Send the planned expectation, if any; return False if the service does not answer."""
        for action in actions:
            if isinstance(action, Expect):
                return await self._expect(key, job.metadata.uid, action.expectation)
        return True

    async def _expect(self, key: Key, uid: str, expectation: Expectation) -> bool:
        """Send an expectation once; return False if the service does not answer."""
        client, report = self._followers.client(key), self._followers.report(key)
        service = (uid, report.term, report.boot) if report else (uid, 0, 0)
        if client is None:
            return False
        if self._sent.get(key) == (*service, expectation):
            return True
        try:
            await client.expect(expectation)
        except ServiceUnavailableError as error:
            log.debug("%s/%s: the service does not answer: %s", *key, error)
            return False
        self._sent[key] = (*service, expectation)
        return True

    def _report(self, key: Key, observed: Observed, token: str) -> Report | None:
        """Return the report of the observed service, or None if it comes from another service."""
        seen = observed.rendezvous
        if seen is None or not seen.ready:
            if seen is None:
                self._followers.unsubscribe(key)
            return self._followers.report(key)
        client = ServiceClient(self._transport_for(key), token)
        self._followers.subscribe(key, observed.job.metadata.uid, seen.term, token, client)
        report = self._followers.report(key)
        return report if report and report.term == seen.term else None

    async def _write_invalid(
        self, raw: dict[str, Any], error: ValidationError, now: datetime
    ) -> float | None:
        text = "; ".join(map(str, explain_errors(error)))
        try:
            old = DDPJobStatus.model_validate(raw.get("status") or {}, by_name=False)
        except ValidationError:
            old = DDPJobStatus()
        status = status_builder.build_invalid_status(
            old, raw["metadata"].get("generation", 0), text, now
        )
        if status != old:
            await self._cluster.write_status(raw, status.to_json())
        self._count(Key(raw["metadata"]["namespace"], raw["metadata"]["name"]), status.state)
        return None

    def _forget(self, key: Key) -> None:
        self._followers.unsubscribe(key)
        self._sent.pop(key, None)
        self._count(key, None)

    def _count(self, key: Key, state: str | None) -> None:
        old = self._states.pop(key, None)
        if old is not None:
            self._metrics.jobs.labels(old).dec()
        if state is not None:
            self._states[key] = state
            self._metrics.jobs.labels(state).inc()


def _earlier(after: float | None, seconds: float) -> float:
    return seconds if after is None else min(after, seconds)


def proxy_transport(kube: ApiServer, key: Key) -> Transport:
    """Return a transport through the API server, for an operator outside the cluster."""
    service = f"{constants.service_name(key.name)}:{constants.SERVICE_PORT}"
    base = f"/api/v1/namespaces/{key.namespace}/services/{service}/proxy"

    async def send(
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: Mapping[str, Any] | None,
        timeout: float,  # noqa: ASYNC109 - passed to the client
    ) -> Any:
        try:
            return await kube.request(
                method, base + path, query=query, headers=headers, body=body, timeout=timeout
            )
        except (ApiError, UnreachableError) as error:
            raise ServiceUnavailableError(str(error)) from error

    return send


def direct_transport(key: Key) -> Transport:
    """Return a direct transport to a job's service, for an operator in the cluster."""
    return connect_directly(
        f"{constants.service_name(key.name)}.{key.namespace}.svc", constants.SERVICE_PORT
    )
