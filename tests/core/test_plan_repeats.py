"""Steps that are done again after a loss: counted in the status, told once."""

from __future__ import annotations

import dataclasses

from builders import NOW, make_job, make_report
from core.planning import UP, W0, W1, decide, events_of
from ddpjob_agent.control import Report, Round
from ddpjob_operator.observed import Observed
from ddpjob_operator.plan import Plan, plan

JOB = make_job(2)
REPORT = make_report(W0, W1, repeated_steps=7)


def told_by(planned: Plan) -> list[str]:
    return [text for reason, text, _ in events_of(planned) if reason == "StepsRepeated"]


def test_they_are_counted_and_told_once() -> None:
    planned = decide(JOB, (W0, W1), report=REPORT)
    assert planned.status.restarts.repeated_steps == 7
    assert told_by(planned) == ["7 steps are done again: the newest snapshot was older"]
    job = JOB.model_copy(update={"status": planned.status})
    assert told_by(plan(Observed(job, (W0, W1), UP, REPORT), NOW)) == []
    more = dataclasses.replace(REPORT, repeated_steps=8)
    planned = plan(Observed(job, (W0, W1), UP, more), NOW)
    assert told_by(planned) == ["1 step is done again: the newest snapshot was older"]


def test_a_service_that_forgot_them_takes_nothing_away() -> None:
    job = JOB.model_copy(update={"status": decide(JOB, (W0, W1), report=REPORT).status})
    planned = plan(Observed(job, (W0, W1), UP, make_report(W0, W1)), NOW)
    assert planned.status.restarts.repeated_steps == 7
    assert told_by(planned) == []


def test_they_travel_and_nothing_does_where_there_are_none() -> None:
    rounds = tuple(Round("1.1.1", "lost", "", (), 2, 0.0, repeated_steps=n) for n in (7, 0))
    report = dataclasses.replace(REPORT, rounds=rounds)
    data = report.to_json()
    assert Report.from_json(data) == report
    assert ["repeated_steps" in each for each in data["rounds"]] == [True, False]
    assert "repeated_steps" not in make_report(W0, W1).to_json()
