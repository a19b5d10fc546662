"""Events of --chaos that may never be due, explained while the job runs."""

from __future__ import annotations

import dataclasses

import pytest

from ddpjob_operator.local.chaos import SILENT_SECONDS, explain_waiting, parse_chaos
from ddpjob_protocol.messages.control import Report, ServiceState

SILENT = Report(1, 1, 1, ServiceState.RUNNING, "", ())
STEPS = dataclasses.replace(SILENT, step=7)
ALL_STEPS = dataclasses.replace(STEPS, total_steps=100)
LATER = SILENT_SECONDS + 1.0


@pytest.mark.parametrize(
    ("event", "report", "elapsed", "reason"),
    [
        pytest.param(
            "kill=30%",
            SILENT,
            LATER,
            "kill=30% needs a script that reports its steps, and no step was reported for 30 s; "
            "with another script, use kill=20s",
            id="share_without_steps",
        ),
        pytest.param(
            "join:node-1=step120",
            SILENT,
            LATER,
            "join:node-1=step120 needs a script that reports its steps, and no step was reported "
            "for 30 s; with another script, use join:node-1=20s",
            id="step_without_steps",
        ),
        pytest.param(
            "kill=30%",
            STEPS,
            1.0,
            "kill=30% needs the number of all steps, and the script reports none; call "
            "step_done(step, steps), or use kill=step100",
            id="share_without_a_total",
        ),
        pytest.param("kill=30%", SILENT, 1.0, "", id="the_script_may_still_import"),
        pytest.param("kill=30%", ALL_STEPS, LATER, "", id="share_of_known_steps"),
        pytest.param("kill=step120", STEPS, LATER, "", id="step_of_a_script_that_reports"),
        pytest.param("kill=90s", SILENT, LATER, "", id="seconds"),
    ],
)
def test_an_event_that_may_never_be_due_is_explained(
    event: str, report: Report, elapsed: float, reason: str
) -> None:
    [parsed] = parse_chaos(event)
    assert explain_waiting(parsed, report, elapsed) == reason
