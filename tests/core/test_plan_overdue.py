"""Workers that had too little time for their last step: told once, with what to do."""

from __future__ import annotations

import dataclasses

from builders import NOW, make_job, make_report
from core.planning import UP, W0, W1, decide, events_of
from ddpjob_agent.control import Overdue, Report
from ddpjob_operator.observed import Observed
from ddpjob_operator.plan import plan

JOB = make_job(2)
SLOW = Overdue("digits-worker-001-1", 30.0)
REPORT = make_report(W0, W1, overdue=(SLOW,))
WORDS = (
    "digits-worker-001-1 was ended before it had done and saved its last step: 30 s were too few."
    " Nothing but what came after the last snapshot is lost. Where steps or saves take that long,"
    " raise template.spec.terminationGracePeriodSeconds"
)


def told_by(planned_events: list[tuple[str, str, bool]]) -> list[str]:
    return [text for reason, text, _ in planned_events if reason == "GracePeriodTooShort"]


def test_it_is_told_once() -> None:
    planned = decide(JOB, (W0, W1), report=REPORT)
    assert ("GracePeriodTooShort", WORDS, True) in events_of(planned)
    assert planned.status.overdue_workers == (SLOW.worker,)
    job = JOB.model_copy(update={"status": planned.status})
    again = plan(Observed(job, (W0, W1), UP, REPORT), NOW)
    assert told_by(events_of(again)) == []
    other = dataclasses.replace(REPORT, overdue=(SLOW, Overdue("digits-worker-000-4", 1.0)))
    [text] = told_by(events_of(plan(Observed(job, (W0, W1), UP, other), NOW)))
    assert text.startswith("digits-worker-000-4 was ended")


def test_a_service_that_forgot_it_does_not_make_it_news() -> None:
    status = decide(JOB, (W0, W1), report=REPORT).status
    for report in (make_report(W0, W1), REPORT):
        job = JOB.model_copy(update={"status": status})
        planned = plan(Observed(job, (W0, W1), UP, report), NOW)
        assert told_by(events_of(planned)) == []
        status = planned.status


def test_it_travels() -> None:
    assert Report.from_json(REPORT.to_json()) == REPORT
    assert "overdue" not in make_report(W0, W1).to_json()
