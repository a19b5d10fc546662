"""What a report says went wrong is told by an event once, and kept in the status."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import Any, NamedTuple

import pytest

from ddpjob_operator.api.status import DDPJobStatus, SnapshotStatus
from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.control import FileSyncReport, Overdue
from support.builders import make_job, make_report
from support.planning import W0, W1, decide, events_of, told

SILENT = make_report(W0, W1)
STUCK = tuple(f"{W0.name}: stuck in membership 1.1.{number}" for number in (1, 2))
PAIR = f"{W0.name} cannot reach {W1.name}"
LITTLE_MEMORY = "The memory limit leaves 3 MB: training stands still while one is written"
SLOW = Overdue("digits-worker-001-1", 30.0)
LOOK_AT_THE_NETWORK = (
    "their processes will not find each other; look at network policies, firewalls between nodes "
    "and network.interface"
)
MAKE_ROOM = "the job continues with the existing copies. Free space on that volume"
TOO_SLOW = (
    "{} was ended before it had done and saved its last step: {} s were too few."
    " Nothing but what came after the last snapshot is lost. Where steps or saves take that long,"
    " raise template.spec.terminationGracePeriodSeconds"
)


class Trouble(NamedTuple):
    """Fields of a report, the event that they cause, and a field of the status."""

    id: str
    report: dict[str, Any]
    event: tuple[str, str, bool]
    status: tuple[str, object]
    shown: str = ""  # at the end of the condition Running
    more: tuple[dict[str, Any], str] | None = None  # fields of a later report; the text for them


REMEMBERED = [
    Trouble(
        "stuck",
        {"stuck": STUCK[:1]},
        ("ProcessStuck", STUCK[0], True),
        ("stuck", STUCK[:1]),
        more=({"stuck": STUCK}, STUCK[1]),
    ),
    Trouble(
        "overdue",
        {"overdue": (SLOW,)},
        ("GracePeriodTooShort", TOO_SLOW.format(SLOW.worker, 30), True),
        ("overdue_workers", (SLOW.worker,)),
        more=(
            {"overdue": (SLOW, Overdue("digits-worker-000-4", 1.0))},
            TOO_SLOW.format("digits-worker-000-4", 1),
        ),
    ),
    Trouble(
        "repeated_steps",
        {"repeated_steps": 7},
        ("StepsRepeated", "7 steps are done again: the newest snapshot was older", False),
        ("restarts.repeated_steps", 7),
        more=({"repeated_steps": 8}, "1 step is done again: the newest snapshot was older"),
    ),
]
TROUBLES = [
    *REMEMBERED,
    Trouble(
        "snapshots_stop_training",
        {"snapshot_step": 3, "snapshot_problem": LITTLE_MEMORY},
        ("SnapshotDegraded", LITTLE_MEMORY, True),
        ("snapshot", SnapshotStatus(step=3, problem=LITTLE_MEMORY)),
        shown=LITTLE_MEMORY,
    ),
    Trouble(
        "unreachable",
        {"unreachable": (PAIR,)},
        ("Unreachable", f"{PAIR}: {LOOK_AT_THE_NETWORK}", True),
        ("unreachable", (PAIR,)),
        shown=PAIR,
    ),
    Trouble(
        "files_not_kept",
        {"files": FileSyncReport(problem="a: full")},
        ("FilesNotKept", f"a: full; {MAKE_ROOM}", True),
        ("snapshot", SnapshotStatus(files_problem="a: full")),
    ),
]


def each_of(troubles: list[Trouble]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trouble", [pytest.param(each, id=each.id) for each in troubles])


def plan_for(status: DDPJobStatus | None, **fields: Any) -> Plan:
    """The plan for two workers that train, and a service with these fields in its report."""
    report = dataclasses.replace(SILENT, **fields)
    return decide(make_job(2, status=status), (W0, W1), report=report)


def events_like(trouble: Trouble, planned: Plan) -> list[tuple[str, str, bool]]:
    return [event for event in events_of(planned) if event[0] == trouble.event[0]]


@each_of(TROUBLES)
def test_it_is_told_once(trouble: Trouble) -> None:
    planned = plan_for(None, **trouble.report)
    assert events_like(trouble, planned) == [trouble.event]
    path, value = trouble.status
    assert attrgetter(path)(planned.status) == value
    assert told(planned.status, "Running")[2].endswith(trouble.shown)
    assert events_like(trouble, plan_for(planned.status, **trouble.report)) == []


@each_of(REMEMBERED)
def test_a_service_that_forgot_it_does_not_make_it_news(trouble: Trouble) -> None:
    status = plan_for(None, **trouble.report).status
    path, value = trouble.status
    for fields in ({}, trouble.report):
        planned = plan_for(status, **fields)
        assert events_like(trouble, planned) == []
        assert attrgetter(path)(planned.status) == value
        status = planned.status
    assert trouble.more
    fields, text = trouble.more
    planned = plan_for(status, **fields)
    assert [event[1] for event in events_like(trouble, planned)] == [text]
    assert events_like(trouble, plan_for(planned.status, **fields)) == []


def test_workers_that_reach_each_other_again_are_not_shown() -> None:
    status = plan_for(None, unreachable=(PAIR,)).status
    assert plan_for(status).status.unreachable == ()
