"""Stories of what a scrape of the operator's metrics shows of a job."""

from __future__ import annotations

import dataclasses

import pytest
from prometheus_client import Metric as Family

from ddpjob_operator.controller.metrics.catalogue import JOB, Metric
from ddpjob_protocol.messages.control import MembershipRecord
from support.reconciling.life import training, worker
from support.reconciling.stage import Play, Stage
from support.scraped import families, value_in


def scrape(stage: Stage) -> dict[str, Family]:
    """Read the metrics as Prometheus does, by name."""
    return families(stage.controller.metrics.page().decode())


def labels_of(family: Family) -> set[frozenset[str]]:
    """The names of the labels of each series."""
    return {frozenset(sample.labels) - {"le"} for sample in family.samples}


def value(stage: Stage, metric: Metric, suffix: str = "", **labels: str) -> float | None:
    own = {"namespace": stage.namespace, "name": "digits", **labels}
    return value_in(stage.controller.metrics.page().decode(), metric.name + suffix, own)


def train(stage: Stage, first: int, last: int, *, after: float, repeated: int = 0) -> float:
    """The newest membership does these steps, one a second; the time of the last one."""
    *earlier, newest = stage.service().report.memberships
    start = newest.since + after
    done: MembershipRecord = dataclasses.replace(
        newest,
        first_step=first,
        first_step_at=start,
        last_step=last,
        last_step_at=start + last - first,
        repeated_steps=repeated,
    )
    stage.service().tell(
        memberships=(*earlier, done),
        step=last,
        total_steps=900,
        steps_per_second=1.0,
        snapshot_step=first,
        repeated_steps=repeated,
    )
    stage.hurry()
    return start + last - first


def test_every_documented_metric_of_a_job_is_there_until_the_job_is_gone(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await training(stage, "000-1", "001-1", gpusPerWorker=2, processesPerWorker=1)
        train(stage, 1, 11, after=4)
        await stage.until(lambda view: "snapshot" in view.status, "the snapshot in status")
        await stage.delete_pod(worker(1), vanishes=True)
        await stage.until(lambda view: view.trains("000-1", "001-2"), "a replacement")
        train(stage, 9, 19, after=2, repeated=3)
        await stage.until(lambda view: view.status["progress"]["step"] == 19, "more steps")
        await stage.calm()
        found = scrape(stage)
        for metric in JOB:
            assert labels_of(found[metric.name]) == {frozenset(metric.labels)}, metric.name
            assert found[metric.name].type == metric.kind
            assert found[metric.name].documentation == metric.text
        by_name = {metric.name: metric for metric in JOB}

        def of(name: str, suffix: str = "", **labels: str) -> float | None:
            return value(stage, by_name[f"ddpjob_job_{name}"], suffix, **labels)

        assert of("state", state="Running") == 1
        assert of("step") == 19
        assert of("world_size") == 2
        assert (of("workers_wanted"), of("workers_ready"), of("gpus")) == (2, 2, 4)
        assert of("restarts_total", cause="infrastructure") == 1
        assert of("memberships_total", cause="started") == 1
        assert of("repeated_steps_total") == 3
        assert of("snapshot_step") == 9
        assert of("first_step_seconds", "_sum", cause="started") == pytest.approx(4)
        assert of("first_step_seconds", "_bucket", cause="started", le="2.5") == 0
        assert of("first_step_seconds", "_bucket", cause="started", le="5.0") == 1
        assert of("detection_seconds", "_count", cause="lost") == 1

        await stage.delete()
        await stage.wait(lambda: gone(stage), "no series of the job", lambda: str(scrape(stage)))

    play(story)


async def gone(stage: Stage) -> bool:
    return not any(
        sample.labels.get("name") == "digits"
        for family in scrape(stage).values()
        for sample in family.samples
    )
