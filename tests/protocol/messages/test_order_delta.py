"""A connection that receives differences knows the same orders as one that receives all."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent.registry.order_text import Members, Order, RunPart
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.order_delta import RunOrders, kept_members

NAMES = "abcdefgh"
FILES = '{"files":null}'
REACHES = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3))
ORDERS = st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1, max_size=5)


def member(name: str) -> Member:
    return Member(name, f"{name}-first", "127.0.0.1", 1)


def part(names: str, reach: dict[str, int], n: int = 1) -> RunPart:
    members = tuple(map(member, names))
    membership = Membership(MembershipId(1, 1, n), members, Cause.JOINED, "")
    key = {"type": "run", "id": str(membership.id), "last": None}
    return RunPart(key, Members(membership, "seal"), 7, {name: reach[name] for name in names if name in reach})  # fmt: skip


@given(ORDERS, st.lists(REACHES, min_size=5, max_size=5))
def test_differences_add_up_to_the_whole(sequence: list[list[str]], reaches: list[Any]) -> None:
    received, base = RunOrders(), None
    for number, names in enumerate(sequence):
        new = part("".join(names), reaches[number], number)
        told = received.complete(json.loads(Order(new, FILES).to_json(base)))
        assert told == json.loads(Order(new, FILES).to_json())
        assert told["membership"]["members"] == [encode(member(name)) for name in names]
        base = new


def test_a_loss_in_a_large_job_is_a_short_order() -> None:
    names = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))
    ports = dict.fromkeys(names, 42345)
    before, after = part(names, ports), part(names[:500] + names[501:], ports, 2)
    assert len(Order(before).to_json()) > 50_000
    assert len(Order(after).to_json(before)) < 500
    text = Order(after).to_json(before)
    assert text.startswith(b'{"type":"run","membership":{"id":"1.1.2",')


def test_members_that_change_their_order_are_named_again() -> None:
    before, after = ([*map(member, names)] for names in ("abcd", "acbd"))
    assert kept_members(before, after) == ([[0, 1], [2, 3]], [member("b"), member("d")])


def test_other_orders_stay_as_they_are() -> None:
    received = RunOrders()
    received.complete(json.loads(Order(part("ab", {})).to_json()))
    halt = {"type": "halt", "last": None}
    assert received.complete(halt) == halt
    told = received.complete(json.loads(Order(part("b", {}, 2)).to_json(part("ab", {}))))
    assert told["membership"]["members"] == [encode(member("b"))], "a halt in between changes nothing"  # fmt: skip
