"""What people read of a status: `kubectl describe` shows each of its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest

from ddpjob_operator.planner.planner import Plan
from ddpjob_protocol.messages.control import ServiceState
from support.builders import NOW, make_job, make_membership, make_report, make_status, make_worker
from support.planning import FAILED, W0, W1, decide, membership_of

ODD = NOW + timedelta(microseconds=123_456)


def values_of(value: object) -> Iterator[object]:
    """Yield a value of JSON and all values in it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inner:
        yield from values_of(each)


@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(decide(now=ODD), id="starts"),
        pytest.param(
            decide(workers=(W0, W1), report=make_report(W0, W1, snapshot_step=5), now=ODD),
            id="trains",
        ),
        pytest.param(
            decide(make_job(suspend=True, status=make_status()), (W0,), now=ODD), id="suspended"
        ),
        pytest.param(
            decide(
                workers=(W0, make_worker(1, phase=FAILED, exit_code=1)),
                report=make_report(W0, membership=make_membership(W0, W1)),
                membership=membership_of(W0, W1),
                now=ODD,
            ),
            id="worker_failed",
        ),
        pytest.param(
            decide(report=make_report(W0, W1, state=ServiceState.COMPLETE), now=ODD), id="complete"
        ),
    ],
)
def test_a_status_has_no_empty_field_and_times_in_whole_seconds(planned: Plan) -> None:
    values = list(values_of(planned.status.to_json()))
    assert not [each for each in values if each in ("", [], {}, None)]
    times = [str(each) for each in values if re.match(r"\d{4}-\d\d-\d\dT", str(each))]
    assert times
    assert not [each for each in times if not re.fullmatch(r"[-\d]{10}T[:\d]{8}Z", each)]
