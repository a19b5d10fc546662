"""Metrics of a job over several passes: what is summed over memberships and over time."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from ddpjob_operator.api.status import DDPJobStatus, GroupStatus, SnapshotStatus
from ddpjob_operator.controller.metrics import catalogue
from ddpjob_operator.controller.metrics.catalogue import Metric
from ddpjob_operator.controller.metrics.collecting import Distribution
from ddpjob_operator.controller.metrics.job_store import JobStore
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import MembershipRecord
from support.builders import NOW, make_job, make_report, make_status

KEY = Key("team", "digits")
START = NOW.timestamp()
FIRST = MembershipRecord(
    "1.1.1", "started", "", ("a", "b"), 2, START + 10,
    first_step=1, first_step_at=START + 20, last_step=81, last_step_at=START + 100,
)  # fmt: skip
SECOND = MembershipRecord(
    "1.1.2", "lost", "", ("a",), 1, START + 104,
    first_step=72, first_step_at=START + 110, last_step=171, last_step_at=START + 210,
    repeated_steps=10,
)  # fmt: skip


class Scene:
    """A store, its clock, and one job."""

    def __init__(self) -> None:
        self.now = START
        self.store = JobStore(lambda: self.now)

    def run_pass(
        self, *records: MembershipRecord, status: DDPJobStatus | None = None, after: float = 0
    ) -> None:
        """One pass, so many seconds after the start of the job."""
        self.now = START + after
        report = dataclasses.replace(make_report(), memberships=records) if records else None
        self.store.update(KEY, make_job(gpusPerWorker=4), status or make_status(), report)

    def of(self, metric: Metric, *labels: str) -> float | Distribution | None:
        """The value of the one sample with these labels."""
        found = [
            sample.value
            for sample in self.store.samples()
            if sample.metric is metric and sample.labels == (*KEY, *labels)
        ]
        return found[0] if found else None


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_goodput_is_the_time_of_new_steps(scene: Scene) -> None:
    scene.run_pass(FIRST, after=110)
    assert scene.of(catalogue.GOODPUT) == pytest.approx(80 / 100)
    scene.run_pass(FIRST, SECOND, after=210)
    useful = 80 + 100 * 90 / 100  # ten of the hundred steps had been done before
    assert scene.of(catalogue.GOODPUT) == pytest.approx(useful / 200)
    scene.now += 50  # nothing is done any more
    assert scene.of(catalogue.GOODPUT) == pytest.approx(useful / 250)


def test_goodput_ends_with_the_job(scene: Scene) -> None:
    scene.run_pass(FIRST, after=100)
    done = make_status(completion_time=NOW + timedelta(seconds=110))
    scene.run_pass(FIRST, status=done, after=111)
    scene.now += 3600
    assert scene.of(catalogue.GOODPUT) == pytest.approx(80 / 100)


def test_goodput_counts_memberships_that_the_service_forgot(scene: Scene) -> None:
    scene.run_pass(FIRST, after=110)
    scene.run_pass(SECOND, after=210)
    assert scene.of(catalogue.GOODPUT) == pytest.approx((80 + 90) / 200)


def test_goodput_begins_again_with_a_resumed_job(scene: Scene) -> None:
    scene.run_pass(FIRST, after=110)
    scene.run_pass(FIRST, status=make_status(start_time=None), after=120)
    assert scene.of(catalogue.GOODPUT) is None
    resumed = make_status(start_time=NOW + timedelta(seconds=102))
    scene.run_pass(FIRST, SECOND, status=resumed, after=204)
    assert scene.of(catalogue.GOODPUT) == pytest.approx(90 / 100)


def test_a_job_without_steps_has_no_goodput(scene: Scene) -> None:
    scene.run_pass(dataclasses.replace(FIRST, first_step=None, first_step_at=None), after=99)
    assert scene.of(catalogue.GOODPUT) is None
    assert scene.of(catalogue.STEP) is None


def test_each_duration_is_counted_once(scene: Scene) -> None:
    for after in (210, 211, 300):
        scene.run_pass(FIRST, SECOND, after=after)
    [detection, first_step] = [
        scene.of(metric, "lost") for metric in (catalogue.DETECTION, catalogue.FIRST_STEP)
    ]
    assert isinstance(detection, Distribution)
    assert isinstance(first_step, Distribution)
    assert (detection.sum, detection.counts[2.5], detection.counts[5]) == (4, 0, 1)
    assert (first_step.sum, first_step.counts[5], first_step.counts[10]) == (6, 0, 1)
    assert detection.counts[float("inf")] == 1
    assert scene.of(catalogue.MEMBERSHIPS, "lost") == 1


def test_a_service_that_does_not_answer_for_a_while_changes_no_count(scene: Scene) -> None:
    scene.run_pass(FIRST, SECOND, after=210)
    scene.run_pass(after=220)
    assert scene.of(catalogue.GOODPUT) == pytest.approx((80 + 90) / 210)
    scene.run_pass(FIRST, SECOND, after=230)
    assert scene.of(catalogue.MEMBERSHIPS, "lost") == 1
    first_step = scene.of(catalogue.FIRST_STEP, "lost")
    assert isinstance(first_step, Distribution)
    assert first_step.sum == 6
    assert scene.of(catalogue.GOODPUT) == pytest.approx((80 + 90) / 220)


def test_goodput_does_not_depend_on_equal_clocks_of_operator_and_service(scene: Scene) -> None:
    ahead = make_status(start_time=NOW + timedelta(seconds=15))  # after the first membership
    scene.run_pass(FIRST, status=ahead, after=110)
    assert scene.of(catalogue.GOODPUT) == pytest.approx(80 / 100)


def test_gpu_seconds_are_those_of_workers_with_a_node(scene: Scene) -> None:
    def placed(count: int) -> DDPJobStatus:
        group = GroupStatus(name="worker", replicas=2, scheduled=count, ready=0)
        return make_status(groups=(group,))

    scene.run_pass(status=placed(1), after=0)
    scene.run_pass(status=placed(2), after=10)
    scene.now += 5
    assert (scene.of(catalogue.GPUS), scene.of(catalogue.GPU_SECONDS)) == (8, 10 * 4 + 5 * 8)
    scene.run_pass(status=placed(0), after=20)
    scene.now += 1000
    assert scene.of(catalogue.GPU_SECONDS) == 10 * 4 + 10 * 8


def test_the_age_of_a_snapshot_is_known_from_its_step_or_from_the_time_of_its_files(
    scene: Scene,
) -> None:
    def saved(step: int | None, synced: float | None = None) -> DDPJobStatus:
        at = None if synced is None else NOW + timedelta(seconds=synced)
        return make_status(snapshot=SnapshotStatus(step=step, files_synced_at=at))

    scene.run_pass(after=5)
    assert scene.of(catalogue.SNAPSHOT_AGE) is None
    scene.run_pass(status=saved(10), after=10)
    scene.run_pass(status=saved(10), after=30)
    assert scene.of(catalogue.SNAPSHOT_AGE) == 20
    scene.run_pass(status=saved(20), after=40)
    assert scene.of(catalogue.SNAPSHOT_AGE) == 0
    scene.run_pass(status=saved(None, synced=45), after=50)
    assert scene.of(catalogue.SNAPSHOT_AGE) == 5


def test_an_invalid_job_keeps_its_gpus_and_shows_its_state(scene: Scene) -> None:
    group = GroupStatus(name="worker", replicas=1, scheduled=1, ready=1)
    scene.run_pass(status=make_status(groups=(group,)))
    scene.store.update(KEY, None, make_status(groups=(group,), state="Stalled"), None)
    assert scene.of(catalogue.STATE, "Stalled") == 1
    assert scene.of(catalogue.STATE, "Pending") == 0
    assert scene.of(catalogue.GPUS) == 4


def test_a_forgotten_job_has_no_sample(scene: Scene) -> None:
    scene.run_pass(FIRST, after=1)
    scene.store.forget(KEY)
    assert {sample.metric for sample in scene.store.samples()} == {catalogue.JOBS}
    assert not any(sample.value for sample in scene.store.samples())
