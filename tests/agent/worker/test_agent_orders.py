"""Which orders of the service an agent follows: what it would say of itself in its next hello."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from agent.membership.views import membership
from ddpjob_agent.worker.agent import Agent, AgentSettings
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.membership import Member, Membership

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = AgentSettings(
    worker="a", processes=1, host="127.0.0.1", port=1, token="the token", address="127.0.0.1",
    orphan_seconds=60, grace_seconds=30, fork_server_enabled=False, termination_log="",
    program=("true",),
)  # fmt: skip
HALT = {"type": "halt", "last": None, "files": None, "planned": False}
STAY = {"type": "stay", "leave": False, "after": None, "save": False}


def run(n: int, *, live: bool = False, incarnation: str = "") -> dict[str, Any]:
    """The order to run membership n; without an incarnation, in that of the agent under test."""
    return {
        "type": "run", "membership": n, "live": live, "asked": False, "last": None,
        "files": None, "port": None, "reach": {}, "incarnation": incarnation,
    }  # fmt: skip


LIVE = functools.partial(run, live=True)


async def after(orders: list[dict[str, Any]]) -> tuple[str, str, str]:
    """The membership that the agent holds, the store it uses, and the processes it wants."""
    agent = Agent(SETTINGS, ["true"], {})
    me = decode(Member, agent._hello()["member"])
    for order in orders:
        if order["type"] == "run":
            its = dataclasses.replace(me, incarnation=order["incarnation"] or me.incarnation)
            formed = dataclasses.replace(membership(n=order["membership"]), members=(its,))
            agent._on_order({**order, "membership": encode(formed)})
        else:
            agent._on_order(order)
    told = agent._hello()
    agent._starts.port.close()
    agent._reach.close()
    agent._reports.close()
    held = str(decode(Membership, told["membership"]).id) if told["membership"] else ""
    processes = "live" if told["live"] else "of one membership" if told["running"] else ""
    return held, agent._link.membership, processes


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        pytest.param([run(2)], ("1.1.2", "", "of one membership"), id="run"),
        pytest.param([run(2), run(3)], ("1.1.3", "", "of one membership"), id="higher"),
        pytest.param([run(2), HALT], ("1.1.2", "", ""), id="halt"),
        pytest.param([run(2), HALT, run(1)], ("1.1.2", "", ""), id="lower"),
        pytest.param([LIVE(2), LIVE(3)], ("1.1.3", "1.1.3", "live"), id="higher_in_live_mode"),
        pytest.param([LIVE(2), LIVE(1)], ("1.1.2", "1.1.2", "live"), id="lower_in_live_mode"),
        pytest.param([run(2, incarnation="old")], ("", "", ""), id="of_an_earlier_agent"),
        pytest.param([STAY], ("", "", "live"), id="stay_before_any_membership"),
        pytest.param([LIVE(2), STAY], ("1.1.2", "1.1.2", "live"), id="stay_keeps_processes"),
        pytest.param([run(2), STAY], ("1.1.2", "", "live"), id="stay_makes_them_live"),
    ],
)
def test_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: list[dict[str, Any]], expected: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert asyncio.run(after(orders)) == expected
