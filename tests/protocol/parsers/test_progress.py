"""A progress report is accepted with all its values, or refused with the odd one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_protocol.codec import DecodeError
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.parsers.progress import (
    MAX_METRICS,
    Position,
    ProgressReport,
    is_metric_name,
    merge_metrics,
)

STEP: dict[str, Any] = {"event": "step", "step": 1}
ALIVE: dict[str, Any] = {
    "event": "alive",
    "rank": 0,
    "step": 1,
    "where": "a.py:7",
    "membership": "",
}
LAST = 2**63 - 1
RANGE = f"instead of an integer from 0 to {LAST}"
COUNTS = ("step", "total", "storage", "storages", "skipped")
NO_COUNTS: tuple[object, ...] = (
    True, False, -1, -(2**63), -(2**63) - 1, LAST + 1, 2**64, 10**400, 1.0, float("inf"), float("nan"),
    "12", "", [1], {"a": 1}, [[[[]]]],
)  # fmt: skip
NO_NUMBERS: tuple[object, ...] = (
    True,
    float("nan"),
    float("inf"),
    -float("inf"),
    10**400,
    "0.5",
    [0.5],
    {},
    None,
)
DEEP = json.loads("[" * 300 + "]" * 300)


def refusal(change: dict[str, Any]) -> str:
    with pytest.raises(DecodeError) as error:
        ProgressReport.parse({**STEP, **change})
    return str(error.value)


@pytest.mark.parametrize("value", NO_COUNTS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("field", COUNTS)
def test_a_count_is_an_integer_of_64_bits(field: str, value: object) -> None:
    assert refusal({field: value}).startswith(f"report.{field} is ")
    assert refusal({field: value}).endswith(RANGE)


@pytest.mark.parametrize("field", COUNTS)
@pytest.mark.parametrize("value", [0, 1, LAST])
def test_the_ends_of_the_range_are_accepted(field: str, value: int) -> None:
    assert getattr(ProgressReport.parse({**STEP, field: value}), field) == value


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: repr(value)[:20])
def test_a_metric_is_a_finite_number(value: object) -> None:
    assert "report.metrics.loss is " in refusal({"metrics": {"loss": value}})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"event": "applause"}, id="unknown event"),
        pytest.param({"event": "alive"}, id="heartbeat"),
        pytest.param({"event": None}, id="no event"),
        pytest.param({"event": ["step"]}, id="event in a list"),
        pytest.param({"step": None}, id="no step"),
        pytest.param({"metrics": ["loss"]}, id="list of metrics"),
        pytest.param({"metrics": {"": 1}}, id="no name"),
        pytest.param({"metrics": {"x" * 65: 1}}, id="long name"),
        pytest.param({"metrics": {"a\nb": 1}}, id="two lines"),
        pytest.param({"metrics": {"\ud800": 1}}, id="surrogate as a name"),
        pytest.param({"metrics": {str(n): n for n in range(65)}}, id="65 metrics"),
        pytest.param({"problem": 5}, id="problem"),
        pytest.param({"problem": "\ud800"}, id="surrogate"),
        pytest.param({"loaded": 1}, id="loaded"),
        pytest.param({"membership": "1" * 300}, id="long membership"),
        pytest.param({"membership": DEEP}, id="deep list"),
    ],
)
def test_an_odd_field_is_refused_with_a_short_message(change: dict[str, Any]) -> None:
    assert len(refusal(change)) < 200


@pytest.mark.parametrize("data", [None, 5, "step", [STEP], DEEP], ids=lambda each: repr(each)[:9])
def test_no_object_is_refused(data: object) -> None:
    for parse in (ProgressReport.parse, Position.parse):
        with pytest.raises(DecodeError, match=r"report is .* instead of an object"):
            parse(data)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": "first"}, {"rank": True}, {"rank": -1}, {"rank": None}, {"step": 1e999},
        {"step": 2**63}, {"where": 7}, {"where": None}, {"membership": 1}, {"age": -1},
        {"age": float("nan")}, {"age": 1e300},
    ],
    ids=str,
)  # fmt: skip
def test_an_odd_heartbeat_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        Position.parse({**ALIVE, **change})


def test_fields_of_a_newer_sender_are_ignored() -> None:
    assert ProgressReport.parse({**STEP, "colour": [1e999]}) == ProgressReport(
        ProgressEvent.STEP, 1
    )
    assert Position.parse({**ALIVE, "mood": None}) == Position(0, 1, "a.py:7", "")


def test_null_is_an_absent_field() -> None:
    optional = dict.fromkeys(("total", "metrics", "storage", "problem", "loaded", "membership"))
    assert ProgressReport.parse({**STEP, **optional}) == ProgressReport(ProgressEvent.STEP, 1)


def test_long_texts_are_cut() -> None:
    assert len(ProgressReport.parse({**STEP, "problem": "x" * 9000}).problem) == 2000
    assert len(Position.parse({**ALIVE, "where": "x" * 9000}).where) == 200


def test_only_the_metrics_that_were_reported_last_are_kept() -> None:
    metrics: dict[str, float] = {"loss": 0.0}
    for step in range(200):
        metrics = merge_metrics(metrics, {f"step {step}": 1.0, "loss": step})
    assert len(metrics) == MAX_METRICS
    assert metrics["loss"] == 199.0
    assert "step 0" not in metrics
    assert "step 199" in metrics


counts = st.integers(0, LAST)
reports = st.builds(
    ProgressReport,
    event=st.sampled_from([each for each in ProgressEvent if each is not ProgressEvent.ALIVE]),
    step=counts,
    membership=st.just("1.1.1") | st.just(""),
    total=st.none() | counts,
    metrics=st.dictionaries(
        st.text(max_size=64).filter(is_metric_name),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=5,
    ),
    storage=counts,
    storages=counts,
    skipped=counts,
    problem=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    loaded=st.booleans(),
)


@given(reports)
def test_a_report_arrives_as_it_was_sent(report: ProgressReport) -> None:
    assert ProgressReport.parse(json.loads(json.dumps(report.to_message()))) == report


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
anything = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


@given(st.dictionaries(st.sampled_from([*COUNTS, "event", "metrics", "loaded"]), anything))
def test_what_is_accepted_can_be_sent_on(change: dict[str, Any]) -> None:
    try:
        report = ProgressReport.parse({**STEP, **change})
    except DecodeError:
        return
    text = json.dumps(report.to_message(), allow_nan=False)
    assert ProgressReport.parse(json.loads(text)) == report
