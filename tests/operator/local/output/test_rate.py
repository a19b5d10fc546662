"""Steps per second, the time left, and the times of signs of life."""

from __future__ import annotations

import pytest

from ddpjob_operator.local.output.rate import StepRate, describe_seconds
from ddpjob_operator.local.output.signs_of_life import SignsOfLife


def test_rate() -> None:
    rate = StepRate()
    assert (rate.per_second, rate.seconds_left(100)) == (None, None)
    for step, now in ((10, 0.0), (10, 1.0), (20, 2.0), (40, 4.0)):
        rate.add(step, now)
    assert rate.per_second == pytest.approx(7.5)
    assert rate.seconds_left(100) == pytest.approx(8.0)
    assert rate.seconds_left(None) is None
    rate.add(200, 4000.0)
    assert rate.seconds_left(100) == 0
    rate.add(50, 4001.0)
    assert rate.per_second is None, "a step back begins again"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3600, "1:00:00"), (100000, "27:46:40")]
)
def test_duration(seconds: float, text: str) -> None:
    assert describe_seconds(seconds) == text


def test_signs_of_life_become_rarer_and_begin_again_with_a_change() -> None:
    signs, last = SignsOfLife(), 0.0
    signs.restart(0.0)
    times = []
    for now in range(3000):
        if signs.due(last, now) is not None:
            last = now
            times.append(now)
    assert times == [60, 180, 480, 1080, 1680, 2280, 2880]
    signs.restart(3000.0)
    assert signs.due(3050.0, 3060.0) is None, "a line was printed since"
    assert signs.due(3050.0, 3110.0) == 110.0
