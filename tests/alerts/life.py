"""A life of jobs that moves every metric, on a real operator: two losses, repeated steps, an error.

The API server is in memory, the services follow this script; time and the scrapes are real.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.controller.metrics.catalogue import (
    FIRST_STEP,
    JOB_LABELS,
    PASS_ERRORS,
    REQUESTS,
    STEP,
    WARNINGS,
    Metric,
)
from ddpjob_operator.controller.process.health import metrics_app, serve
from ddpjob_operator.kube.interface import ApiError
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_protocol.messages.control import MembershipRecord
from ddpjob_protocol.messages.warnings import JobWarning, WarningReason
from support.reconciling.in_memory import CheckingKube
from support.reconciling.stage import Stage, staged

NAMESPACE, NAME = "team", "digits"


class Life:
    """One operator, its port for Prometheus, and what a test asks there."""

    def __init__(self) -> None:
        self.kube = CheckingKube()
        self.stage = Stage(self.kube, (NAMESPACE, "elsewhere"), self.kube)
        self.port = free_port()

    async def run(self, has: Callable[[str], bool]) -> None:
        """Live the life; `has` tells whether a query has an answer in Prometheus now."""
        async with staged(self.stage) as stage:
            page = stage.controller.metrics.page
            runner = await serve(metrics_app(page), self.port)
            try:
                await self._train(stage, has)
            finally:
                await runner.cleanup()

    async def _train(self, stage: Stage, has: Callable[[str], bool]) -> None:
        async def scraped(query: str) -> None:
            async def holds() -> bool:
                return await asyncio.to_thread(has, query)

            await stage.wait(holds, f"scraped: {query}")

        await scraped("ddpjob_jobs")
        await stage.create(gpusPerWorker=1, minReplicas=1)
        await self._until_training("000-1", "001-1")
        self._steps(1, 100, snapshot_step=50)
        await scraped(of(FIRST_STEP, "_count", cause="started"))
        for change in (1, 2):  # a loss, steps of one worker, and its replacement joins
            stage.nodes.capacity = 2  # the service and one worker
            await stage.delete_pod(f"{NAME}-worker-001-{change}", vanishes=True)
            await stage.until(
                lambda view: view.state == "Running" and len(view.members) == 1, "one trains on"
            )
            self._steps(91 * change, 91 * change + 40, repeated=10, snapshot_step=90 * change)
            await scraped(f"{of(FIRST_STEP, '_count', cause='lost')} == {change}")
            stage.nodes.capacity = 100
            await self._until_training("000-1", f"001-{change + 1}")
            self._steps(91 * change + 41, 91 * change + 90, snapshot_step=91 * change + 40)
            await scraped(f"{of(FIRST_STEP, '_count', cause='joined')} == {change}")
        problem = JobWarning(WarningReason.SNAPSHOT_DEGRADED.value, "the disk is full")
        stage.service().tell(warnings=(problem,))
        stage.hurry()
        await scraped(f"{of(WARNINGS)} == 1")
        error = ApiError(403, "Forbidden", "no right to read jobs")
        self.kube.refuse("GET", constants.PLURAL, error, times=1)
        stage.controller.changed(NAMESPACE, NAME)
        await scraped(f"{PASS_ERRORS.name} > 0")
        self._steps(300, 400, snapshot_step=390)
        await scraped(f"{of(STEP)} == 400")
        # A rate needs two scrapes of a series, and this one is the last that began.
        await scraped(f'count_over_time({REQUESTS.name}{{code="403"}}[1m]) > 2')

    async def _until_training(self, *workers: str) -> None:
        await self.stage.until(lambda view: view.trains(*workers), "they train")

    def _steps(self, first: int, last: int, *, repeated: int = 0, **report: Any) -> None:
        """Let the newest membership do steps, in the seconds before now."""
        service, now = self.stage.service(), time.time()
        *older, newest = service.report.memberships
        began = newest.first_step_at or (newest.since + now) / 2
        done: MembershipRecord = dataclasses.replace(
            newest, first_step=newest.first_step or first,
            first_step_at=began, last_step=last, last_step_at=now, repeated_steps=repeated,
        )  # fmt: skip
        memberships = (*older, done)
        service.tell(
            memberships=memberships, step=last, step_at=now, total_steps=1000,
            steps_per_second=100.0, metrics={"loss": 1 / last},
            repeated_steps=sum(each.repeated_steps for each in memberships), **report,
        )  # fmt: skip
        self.stage.hurry()


def of(metric: Metric, suffix: str = "", **labels: str) -> str:
    """The selector of the job's series."""
    own = dict(zip(JOB_LABELS, (NAMESPACE, NAME), strict=True)) | labels
    chosen = ",".join(f'{label}="{value}"' for label, value in own.items())
    return f"{metric.name}{suffix}{{{chosen}}}"
