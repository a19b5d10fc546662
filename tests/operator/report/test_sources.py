"""The data of a page: what a local run records, read again, and the status of a job."""

from __future__ import annotations

import dataclasses
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ddpjob_operator.local.record.course import FILE, MAX_KEPT, MAX_LINES, MAX_POINTS, Course
from ddpjob_operator.local.record.run_files import find_runs, read_run
from ddpjob_operator.report.from_files import run_of_files
from ddpjob_operator.report.from_job import run_of_job
from ddpjob_operator.report.page import report_page
from ddpjob_operator.report.run import Run
from ddpjob_protocol.messages.control import MembershipRecord, Report, Stall
from support.builders import make_report, make_worker

EPOCH = 1_000_000.0


def record(number: int, since: float, **fields: Any) -> MembershipRecord:
    cause = "started" if number == 1 else "lost"
    base = MembershipRecord(f"1.1.{number}", cause, cause, ("a", "b"), 2, EPOCH + since)
    return dataclasses.replace(base, **fields)


def report_at(at: float, step: int, *memberships: MembershipRecord, **fields: Any) -> Report:
    base = make_report(make_worker())
    return dataclasses.replace(
        base, step=step, step_at=EPOCH + at, memberships=memberships, **fields
    )


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path / FILE, "digits", "default", EPOCH)


def read(folder: Path) -> Run:
    return run_of_files((folder / FILE).read_text().splitlines(), (), {}, EPOCH + 100)


def test_what_is_recorded_is_read(course: Course, tmp_path: Path) -> None:
    first = record(1, 2, first_step=1, first_step_at=EPOCH + 5)
    stall = Stall(EPOCH + 6, 2, 1.0)
    course.follow(report_at(5, 1, first, metrics={"loss": 2.0}))
    course.follow(report_at(6, 2, first, metrics={"loss": 1.5}))
    course.follow(report_at(6, 2, first, stall=stall))
    course.follow(report_at(16, 3, first, metrics={"loss": 1.0}))
    over = dataclasses.replace(first, last_step=4, last_step_at=EPOCH + 17)
    second = record(2, 18, resumed_step=2, repeated_steps=2)
    course.follow(report_at(17, 4, over, second))
    second = dataclasses.replace(second, first_step=3, first_step_at=EPOCH + 20)
    course.follow(report_at(20, 3, over, second, metrics={"loss": float("nan")}))
    course.follow(report_at(20.1, 4, over, second))
    course.end(EPOCH + 21)
    run = read(tmp_path)
    assert (run.name, run.state, run.started, run.now) == (
        "digits", "Stopped", EPOCH, EPOCH + 21,
    )  # fmt: skip
    assert [change.stall_seconds for change in run.changes] == [3.0, 3.0]
    assert [change.last_step_at for change in run.changes] == [EPOCH + 17, EPOCH + 20.1]
    assert [(point.step, dict(point.metrics)) for point in run.points] == [
        (1, {"loss": 2.0}), (2, {"loss": 1.5}), (3, {"loss": 1.0}), (4, {}), (3, {}), (4, {}),
    ]  # fmt: skip
    (hang,) = run.hangs
    assert (hang.since, hang.until, hang.step) == (EPOCH + 6, EPOCH + 16, 2)


def test_steps_that_are_done_again_count_also_if_the_service_does_not_count_them(
    course: Course, tmp_path: Path
) -> None:
    """10 steps, 4 of them again and then a loss; 8 again in the third membership."""
    first = record(1, 0, first_step=1, first_step_at=EPOCH + 1, last_step=10)
    second = record(2, 20, first_step=3, first_step_at=EPOCH + 21, last_step=6)
    third = record(3, 30, first_step=3, first_step_at=EPOCH + 31, last_step=20)
    times = (EPOCH + 10, EPOCH + 24, EPOCH + 48)
    done = [
        dataclasses.replace(each, last_step_at=at)
        for each, at in zip((first, second, third), times, strict=True)
    ]
    course.follow(report_at(48, 20, *done))
    course.end(EPOCH + 50)
    assert [change.repeated_steps for change in read(tmp_path).changes] == [0, 4, 8]


def test_the_record_of_a_long_run_stays_small(course: Course, tmp_path: Path) -> None:
    most = 0
    last = MAX_KEPT + 100
    for number in range(1, last + 1):
        member = record(number, number)
        for part in range(10):
            at = number + part / 10
            course.follow(report_at(at, 10 * number + part, member))
        if number % 50 == 0:
            most = max(most, len((tmp_path / FILE).read_text().splitlines()))
    course.end(EPOCH + last + 1)
    assert most <= MAX_LINES + 1
    run = read(tmp_path)
    assert len(run.points) <= MAX_POINTS + 1
    assert run.points[-1].step == 10 * last + 9, "the last step is there"
    gaps = (new.at - old.at for old, new in itertools.pairwise(run.points))
    assert max(gaps) < 10, "all parts of the run have points"
    assert MAX_KEPT <= len(run.changes) < MAX_LINES
    assert not run.complete, "older memberships are not in the file"


def test_a_line_that_is_cut_off_and_a_line_of_another_version_are_skipped(
    course: Course, tmp_path: Path
) -> None:
    course.follow(report_at(5, 1, record(1, 2)))
    file = tmp_path / FILE
    odd = [
        "[1]", "7", '{"kind": "comet"}', '{"kind": "membership", "record": {"id": 4}}',
        '{"kind": "point", "at": "soon", "step": 1}', '{"kind": "point", "at": 1, "step": "two"}',
        '{"kind": "point", "at": 1e6, "step": 1%s}' % ("0" * 400),
        '{"kind": "hang", "since": NaN, "step": 1}',
    ]  # fmt: skip
    whole = "\n".join([file.read_text().rstrip(), *odd, '{"kind": "poi'])
    file.write_text(whole)
    run = read(tmp_path)
    assert [point.step for point in run.points] == [1]
    assert len(run.changes) == 1
    assert not run.ended
    assert report_page(run)


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    course = Course(tmp_path / "missing" / FILE, "digits", "default", EPOCH)
    course.follow(report_at(5, 1, record(1, 2)))
    course.end(EPOCH + 9)


def test_a_run_is_found_by_its_folder_or_one_above(tmp_path: Path) -> None:
    folder = tmp_path / ".ddpjob" / "default" / "digits"
    assert find_runs(tmp_path) == []
    for each in (folder, folder.with_name("digits.previous")):
        each.mkdir(parents=True)
        (each / "status.json").write_text("{}")
    for above in (tmp_path, tmp_path / ".ddpjob", folder):
        assert find_runs(above) == [folder]
    assert find_runs(folder.with_name("digits.previous")) != [], "if it is named"
    assert read_run(folder).changes == ()


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(EPOCH + seconds, UTC).isoformat().replace("+00:00", "Z")


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "namespace": "team"}, "status": status}


def entry(number: int, since: float, **fields: Any) -> dict[str, Any]:
    cause = "started" if number == 1 else "lost"
    found = {"membership": f"1.1.{number}", "cause": cause, "since": time_text(since)}
    return {**found, "workers": 2, "worldSize": 4, **fields}


def test_the_status_of_a_job_is_a_run() -> None:
    status = {
        "state": "Complete",
        "startTime": time_text(0),
        "completionTime": time_text(100),
        "history": [
            entry(1, 2, stallSeconds=8, firstStep=1),
            entry(2, 50, stallSeconds=12, firstStep=30, repeatedSteps=4, ended=["b: OOMKilled"]),
        ],
        "progress": {"step": 90, "totalSteps": 90, "stepsPerSecond": 2.0, "metrics": {"loss": 1}},
    }
    run = run_of_job(job(**status), EPOCH + 1000)
    assert (run.elapsed, run.complete, run.step) == (100, True, 90)
    page = report_page(run)
    for part in ("DDPJob team/digits", "b: OOMKilled", "12 s", "76.0 %"):
        assert part in page, part


def test_time_before_the_oldest_known_membership_is_not_judged() -> None:
    status = {"startTime": time_text(0), "history": [entry(30, 500, firstStep=9, stallSeconds=5)]}
    run = run_of_job(job(**status), EPOCH + 600)
    assert (run.complete, run.elapsed, run.ended) == (False, 100, False)
    assert "Older memberships are not known any more" in report_page(run)


def test_a_job_without_a_status_is_a_page() -> None:
    run = run_of_job({"metadata": {"name": "new"}}, EPOCH)
    assert run.state == "Pending"
    assert "No membership was formed yet" in report_page(run)
    assert json.dumps(run.message)
