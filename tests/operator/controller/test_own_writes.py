"""The watch of a job also has the operator's own writes: they are not news, anything else is."""

from __future__ import annotations

import asyncio

from ddpjob_operator.request import Request
from support.reconciling.in_memory import CheckingKube, play_in_memory
from support.reconciling.life import training
from support.reconciling.stage import JOBS, Stage

SOON_SECONDS = 60.0  # long before all jobs are looked at again


def test_progress_costs_one_read_and_one_write() -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await stage.calm()
        before = stage.wire.counts()
        for step in range(1, 51):
            stage.service().tell(step=step, total_steps=900, snapshot_step=step // 10)
            await asyncio.sleep(2)
        after = stage.wire.counts()
        reads, writes = (after[k] - before[k] for k in ("GET ddpjobs", "PUT ddpjobs/status"))
        assert writes > 5
        assert reads <= writes + 1

    play_in_memory(story)


def test_a_change_that_comes_together_with_an_own_write_is_not_lost() -> None:
    kube = CheckingKube()

    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        await stage.calm()
        kube.hold_watches()
        stage.service().tell(step=7, total_steps=900)
        await stage.until(lambda view: view.status.get("progress"), "the operator writes")
        await stage.change(replicas=3)
        kube.release_watches()
        began = stage.clock()
        await stage.until(lambda view: view.trains("000-1", "001-1", "002-1"), "it grows")
        assert stage.clock() - began < SOON_SECONDS

    play_in_memory(story, kube)


def test_a_status_that_somebody_else_has_written_is_news() -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1")
        stage.service().tell(step=7, total_steps=900)
        await stage.until(lambda view: view.status.get("progress"), "the operator writes")
        job = (await stage.calm()).job
        path = f"{JOBS.format(stage.namespace)}/digits/status"
        foreign = {**job, "status": {**job["status"], "state": "Waiting"}}
        await stage.kube.send(Request("PUT", path, body=foreign))
        began = stage.clock()
        await stage.until(lambda view: view.state == "Running", "it is corrected")
        assert stage.clock() - began < SOON_SECONDS

    play_in_memory(story)
