"""What a report says went wrong is told by an event once, and kept in the status."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from ddpjob_operator.api.status import DDPJobStatus, WarningStatus
from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.messages.control import ServiceState
from ddpjob_protocol.messages.warnings import MAX_INCIDENTS, JobWarning, rendezvous_fails
from support.builders import make_job, make_report
from support.planning import W0, W1, decide, events_of, told

SILENT = make_report(W0, W1)
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def problem(message: str = "cannot reach it; look there", worker: str = W0.name) -> JobWarning:
    return JobWarning("Unreachable", message, worker, SINCE.timestamp() + 0.5)


def incident(number: int) -> JobWarning:
    return JobWarning("ProcessStuck", f"hung in 1.1.{number}", W1.name, ongoing=False)


def plan_for(status: DDPJobStatus | None, *warnings: JobWarning, **fields: Any) -> Plan:
    """The plan for two workers that train, and a service that reports these warnings."""
    report = dataclasses.replace(SILENT, warnings=warnings, **fields)
    return decide(make_job(2, status=status), (W0, W1), report=report)


def warned(planned: Plan) -> list[tuple[str, str]]:
    return [(reason, text) for reason, text, is_warning in events_of(planned) if is_warning]


def kept(planned: Plan) -> list[str]:
    return [each.message for each in planned.status.warnings]


def test_it_is_told_once() -> None:
    found = problem()
    planned = plan_for(None, found)
    text = f"{W0.name}: {found.message}"
    assert warned(planned) == [("Unreachable", text)]
    assert planned.status.warnings == (
        WarningStatus(reason="Unreachable", message=found.message, worker=W0.name, since=SINCE),
    )
    assert told(planned.status, "Running")[2].endswith(f"; {text}")
    later = dataclasses.replace(found, since=found.since + 60)
    again = plan_for(planned.status, later)
    assert warned(again) == []
    assert again.status.warnings == planned.status.warnings, "since it was first reported"


def test_any_reason_of_a_newer_agent_is_told() -> None:
    assert warned(plan_for(None, JobWarning("New", "x"))) == [("New", "x")]


def test_a_failing_service_is_told_without_a_worker() -> None:
    message = rendezvous_fails("TypeError: x").message
    planned = plan_for(None, JobWarning("RendezvousFails", message))
    assert warned(planned) == [("RendezvousFails", message)]
    assert told(planned.status, "Running")[2].endswith(f"; {message}")


def test_each_worker_and_each_change_is_told() -> None:
    status = plan_for(None, problem()).status
    planned = plan_for(status, problem(), problem(worker=W1.name))
    assert [text.split(":")[0] for _, text in warned(planned)] == [W1.name]
    assert [text for _, text in warned(plan_for(status, problem("x")))] == [f"{W0.name}: x"]


def test_ended_problem_is_not_shown() -> None:
    planned = plan_for(plan_for(None, problem()).status)
    assert planned.status.warnings == ()
    assert problem().message not in told(planned.status, "Running")[2]


def test_without_a_report_what_is_known_stays() -> None:
    alone = dataclasses.replace(problem(), reason="NotDistributed")  # a job has it, too
    status = plan_for(None, problem(), alone, incident(1)).status
    planned = decide(make_job(2, status=status), (W0, W1))
    assert planned.status.warnings == status.warnings
    assert warned(planned) == []


def test_a_service_that_forgot_an_incident_does_not_make_it_news() -> None:
    status = plan_for(None, incident(1)).status
    for warnings in ((), (incident(1),)):
        planned = plan_for(status, *warnings)
        assert warned(planned) == []
        assert kept(planned) == ["hung in 1.1.1"]
        status = planned.status
    planned = plan_for(status, incident(2))
    assert warned(planned) == [("ProcessStuck", f"{W1.name}: hung in 1.1.2")]
    assert kept(planned) == ["hung in 1.1.1", "hung in 1.1.2"]


def test_reported_incidents_stay_when_older_ones_are_dropped() -> None:
    status, reported = None, []
    for number in range(MAX_INCIDENTS):
        status = plan_for(status, incident(number)).status
    for number in (0, *range(MAX_INCIDENTS, 2 * MAX_INCIDENTS - 1)):
        reported.append(incident(number))
        planned = plan_for(status, *reported)
        assert len(warned(planned)) == (number > 0)
        status = planned.status
    assert kept(planned) == [each.message for each in reported]


def test_incident_is_no_current_problem() -> None:
    assert "hung" not in told(plan_for(None, incident(1)).status, "Running")[2]


def test_running_shows_three_and_counts_the_others() -> None:
    planned = plan_for(None, *(JobWarning(f"R{n}", f"text {n}") for n in range(5)))
    shown = told(planned.status, "Running")[2]
    assert shown.endswith("; text 0; text 1; text 2; and 2 more in status.warnings")


def test_warning_beside_the_end_is_told() -> None:
    planned = plan_for(None, incident(1), state=ServiceState.COMPLETE)
    assert [reason for reason, *_ in events_of(planned)][-2:] == ["ProcessStuck", "Completed"]


def test_repeated_steps_are_told_once() -> None:
    status = None
    for steps, texts in ((7, ["7 steps are"]), (7, []), (0, []), (7, []), (8, ["1 step is"])):
        planned = plan_for(status, repeated_steps=steps)
        found = [text for reason, text, _ in events_of(planned) if reason == "StepsRepeated"]
        assert found == [f"{text} done again: the newest snapshot was older" for text in texts]
        assert planned.status.restarts.repeated_steps == max(7, steps)
        status = planned.status


def test_a_setting_that_is_seldom_meant_is_told_once_and_stays() -> None:
    shell: dict[str, Any] = {"command": ["sh", "-c", "exec torchrun --nnodes=2 train.py"]}
    first = decide(make_job(2, **shell), (W0, W1), report=SILENT)
    ((reason, text),) = warned(first)
    assert (reason, text.partition(";")[0]) == (
        "SizeFixed",
        "worker: --nnodes=2 pins the number of workers",
    )
    assert told(first.status, "Running")[2].endswith(text)
    for report in (SILENT, None):
        again = decide(make_job(2, status=first.status, **shell), (W0, W1), report=report)
        assert kept(again) == [text]
        assert warned(again) == []
    repaired = decide(make_job(2, status=first.status), (W0, W1))
    assert kept(repaired) == []
