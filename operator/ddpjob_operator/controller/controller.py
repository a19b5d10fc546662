"""Assembles and runs the operator: queue, reflectors, sessions, passes, health.

May not: use kopf, which only names changed jobs, or decide anything.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from ddpjob_operator.controller.keys.job_keys import JobKeys
from ddpjob_operator.controller.metrics import InstrumentedApiServer, Metrics
from ddpjob_operator.controller.objects.cluster import Cluster
from ddpjob_operator.controller.progress import ON_ANSWER, ObservedApiServer
from ddpjob_operator.controller.reconciler import Reconciler, utc_now
from ddpjob_operator.controller.settings import Settings
from ddpjob_operator.controller.transports import direct_transport, proxy_transport
from ddpjob_operator.controller.workqueue import WorkQueue
from ddpjob_operator.kube.interface import CONFLICT, ApiError, ApiServer, UnreachableError
from ddpjob_operator.rendezvous.client import Transport
from ddpjob_operator.rendezvous.session_pool import Key, ServiceId, SessionPool

RESYNC_SECONDS = 300.0  # every job is reconciled again, to repair missed changes
FROZEN_SECONDS = 120.0  # longest healthy time of a pass without an answer to a request
DEAF_SECONDS = 150.0  # longest healthy silence of a watch: two of its time-outs

log = logging.getLogger("ddpjob.controller")


class Controller:
    """An operator."""

    def __init__(
        self,
        kube: ApiServer,
        settings: Settings,
        keys: JobKeys,
        transport_for: Callable[[Key, ServiceId], Transport] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        leads: bool = True,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`keys` are derived from the operator's key.

        `transport_for` defaults to a direct connection or to the API server's proxy.
        With `leads=False`, the operator only watches until `lead()`.
        """
        self._clock = clock
        self.metrics = Metrics()
        self._kube = ObservedApiServer(InstrumentedApiServer(kube, self.metrics))
        self._settings = settings
        self._leads = asyncio.Event()
        if leads:
            self._leads.set()
        self._queue: WorkQueue[Key] = WorkQueue(first_retry=0.2, time=clock)
        if transport_for is None:
            proxied = functools.partial(proxy_transport, self._kube)
            transport_for = direct_transport if kube.in_cluster else proxied
        self._sessions = SessionPool(transport_for, self._queue.add)
        self.cluster = Cluster(
            self._kube,
            settings.agent_image,
            settings.namespaces,
            self._sessions,
            self.changed,
            keys,
            clock,
            settings.operator_pods,
        )
        self._reconciler = Reconciler(self.cluster, self.metrics, clock, now, settings.requests)
        self.metrics.watch_queue(
            settings.workers, lambda: len(self._queue), self._queue.oldest_waiting
        )
        self.metrics.watch_watches(self._silences)
        self.metrics.watch_leader(self._leads.is_set)

    def changed(self, namespace: str, name: str) -> None:
        """Queue a job after a change of the job or of its objects; a standby plans nothing."""
        if self._leads.is_set():
            self._queue.add(Key(namespace, name))

    def job_changed(self, namespace: str, name: str, version: str) -> None:
        """Queue a job after a change of the job itself, unless its version leaves nothing to do.

        An empty version is always a change.
        """
        if self._reconciler.is_news(Key(namespace, name), version):
            self.changed(namespace, name)

    def lead(self) -> None:
        """Plan from now on, beginning with all jobs."""
        self._leads.set()

    async def stop_planning(self, seconds: float) -> bool:
        """Begin no pass any more; return whether all passes ended in time, so that none is cut."""
        try:
            async with asyncio.timeout(seconds):
                await self._queue.drain()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self.cluster.reflectors:
                    group.create_task(reflector.run())
                for reflector in self.cluster.reflectors:
                    await reflector.synced.wait()
                log.info("ready: pods and services are listed")
                await self._leads.wait()
                group.create_task(self._resync())
                for _ in range(self._settings.workers):
                    group.create_task(self._work())
        finally:
            await self._sessions.close_all()

    def problems(self) -> list[str]:
        """Return the reasons to restart this operator; an empty list if healthy."""
        problems = []
        if (still := self._queue.longest_standstill()) > FROZEN_SECONDS:
            problems.append(f"a job has been waiting, or worked on, for {still:.0f} s")
        for reflector in self.cluster.reflectors:
            silent = self._clock() - reflector.last_seen()
            if reflector.synced.is_set() and silent > DEAF_SECONDS and not reflector.error:
                problems.append(f"the watch of {reflector.path} has been silent for {silent:.0f} s")
        return problems

    def _silences(self) -> Iterator[tuple[str, float]]:
        for reflector in self.cluster.reflectors:
            if reflector.synced.is_set():
                yield reflector.path, self._clock() - reflector.last_seen()

    def not_ready_reasons(self) -> list[str]:
        """Return the reasons why this operator is not ready; an empty list if ready."""
        missing = [
            f"{reflector.path}: {reflector.error or 'not listed yet'}"
            for reflector in self.cluster.reflectors
            if reflector.error or not reflector.synced.is_set()
        ]
        return [*missing, *self.problems()]

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            started = time.monotonic()
            ON_ANSWER.set(functools.partial(self._queue.renew, key))
            failed = True
            try:
                after = await self._reconciler.reconcile(key)
            except ApiError as error:
                level = logging.DEBUG if error.status == CONFLICT else logging.WARNING
                log.log(level, "%s/%s: the API server rejects the request: %s", *key, error)
                self._queue.retry(key)
            except UnreachableError as error:
                log.warning("%s/%s: %s", *key, error)
                self._queue.retry(key)
            except Exception:
                log.exception("%s/%s: the pass failed", *key)
                self._queue.retry(key)
            else:
                failed = False
                self._queue.forget(key)
                if after is not None:
                    self._queue.add_after(key, after)
            finally:
                self.metrics.observe_pass(time.monotonic() - started, failed=failed)
                self._queue.done(key)

    async def _resync(self) -> None:
        settled: set[tuple[str, str]] = set()  # ended, and worked on since
        while True:
            try:
                known = {tuple(key) for key in self.metrics.jobs.known()}
                listed = await self.cluster.jobs.list()
                gone = known - listed.keys()  # the deletion was missed
                for namespace, name in gone | (listed.keys() - settled):
                    self.changed(namespace, name)
                settled = {key for key, ended in listed.items() if ended}
            except (ApiError, UnreachableError) as error:
                log.warning("cannot list jobs: %s", error)
            await asyncio.sleep(RESYNC_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - spread
