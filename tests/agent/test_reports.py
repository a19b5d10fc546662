"""What an agent knows of its processes, as they tell it in datagrams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ddpjob_agent.reports import Reports

SIGN = {"event": "alive", "rank": 3, "step": 12, "where": "train.py:9", "membership": "1.1.1"}


def known(*datagrams: dict[str, Any], restarted: bool = False) -> list[dict[str, Any]]:
    """What is told to the service after these, but for how old it is."""

    async def main() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        reports = Reports(sent.append)
        for each in datagrams:
            reports.datagram_received(json.dumps(each).encode(), None)
        if restarted:
            reports.begin()
        assert sent == [], "it goes with the beats"
        assert reports.recall() == []
        alive = reports.alive()
        assert all(each.pop("age") >= 0 for each in alive)
        return alive

    return asyncio.run(main())


def without_event(sign: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sign.items() if name != "event"}


def test_the_last_sign_of_each_rank_counts() -> None:
    other = {**SIGN, "rank": 2}
    newer = {**SIGN, "step": 13, "where": "train.py:7 in load"}
    assert known(SIGN, other, newer) == [without_event(newer), without_event(other)]


def test_ranks_of_another_membership_are_forgotten() -> None:
    moved = {**SIGN, "rank": 1, "membership": "1.1.2"}
    assert known(SIGN, moved) == [without_event(moved)]


def test_ranks_of_an_earlier_start_are_forgotten() -> None:
    assert known(SIGN, restarted=True) == []


@pytest.mark.parametrize(
    "fault",
    [{"rank": "first"}, {"step": None}, {"rank": None}],
    ids=["rank_is_a_word", "no_step", "no_rank"],
)
def test_what_cannot_be_read_is_passed_over(fault: dict[str, Any]) -> None:
    assert known({**SIGN, **fault}) == []


def test_where_is_bounded() -> None:
    (sign,) = known({**SIGN, "where": "x" * 10_000})
    assert len(sign["where"]) == 200
