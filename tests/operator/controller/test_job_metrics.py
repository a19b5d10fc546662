"""Metrics of a job over several passes: what is summed over memberships and over time."""

from __future__ import annotations

import cProfile
import dataclasses
from datetime import timedelta

import pytest

from ddpjob_operator.api.status import DDPJobStatus, GroupStatus, SnapshotStatus
from ddpjob_operator.controller.metrics import catalogue
from ddpjob_operator.controller.metrics.catalogue import Metric
from ddpjob_operator.controller.metrics.job_store import JobStore
from ddpjob_operator.rendezvous.session_pool import Key
from ddpjob_protocol.messages.control import MembershipRecord
from support.builders import NOW, make_job, make_report, make_status
from support.scraped import families, value_in

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

    def of(self, metric: Metric, *labels: str, of: str = "", le: str = "") -> float | None:
        """The value of the one series with these labels, of a histogram's count, sum or bucket."""
        own = dict(zip(metric.labels, (*KEY, *labels), strict=True))
        if le:
            own["le"], of = le, "_bucket"
        return value_in(self.store.page(), metric.name + of, own)


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
    for metric, seconds, above, within in (
        (catalogue.DETECTION, 4, "2.5", "5.0"),
        (catalogue.FIRST_STEP, 6, "5.0", "10.0"),
    ):
        assert scene.of(metric, "lost", of="_sum") == seconds
        assert scene.of(metric, "lost", of="_count") == 1
        found = [scene.of(metric, "lost", le=bound) for bound in (above, within, "+Inf")]
        assert found == [0, 1, 1]
    assert scene.of(catalogue.MEMBERSHIPS, "lost") == 1


def test_a_service_that_does_not_answer_for_a_while_changes_no_count(scene: Scene) -> None:
    scene.run_pass(FIRST, SECOND, after=210)
    scene.run_pass(after=220)
    assert scene.of(catalogue.GOODPUT) == pytest.approx((80 + 90) / 210)
    scene.run_pass(FIRST, SECOND, after=230)
    assert scene.of(catalogue.MEMBERSHIPS, "lost") == 1
    assert scene.of(catalogue.FIRST_STEP, "lost", of="_sum") == 6
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
    samples = [each for family in families(scene.store.page()).values() for each in family.samples]
    assert {sample.name for sample in samples} == {catalogue.JOBS.name}
    assert not any(sample.value for sample in samples)


def test_a_scrape_costs_a_few_calls_for_each_job() -> None:
    """A page of 1,000 jobs must not block the event loop: their passes have rendered the lines."""

    def calls(jobs: int) -> int:
        store = JobStore()
        report = dataclasses.replace(make_report(), memberships=(FIRST, SECOND))
        for number in range(jobs):
            store.update(Key("team", f"job-{number}"), make_job(gpusPerWorker=4), status, report)
        profile = cProfile.Profile()
        assert profile.runcall(store.page).count("\n") > 40 * jobs
        return sum(entry.callcount for entry in profile.getstats())

    status = make_status()
    few, many = calls(10), calls(110)
    assert (many - few) / 100 < 60


def test_the_words_of_a_service_cannot_forge_a_series(scene: Scene) -> None:
    record = dataclasses.replace(FIRST, cause='x"} 1\nddpjob_job_step{namespace="\\')
    scene.run_pass(record, after=1)
    assert scene.of(catalogue.MEMBERSHIPS, record.cause) == 1
    assert scene.of(catalogue.STEP) is None
