"""Orders of the service to an agent: whole, with few members, or refused."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_protocol.messages.order_delta import RunOrders
from support.fuzzing import fuzz, measured, mutated_json, size_of


def member(name: str) -> dict[str, Any]:
    return {"worker": name, "incarnation": f"{name}-1", "address": "10.0.0.1", "processes": 1}


def order(members: Any, reach: Any) -> dict[str, Any]:
    return {"type": "run", "membership": {"id": "1.1.1", "members": members}, "reach": reach}


FULL = order([member("a"), member("b"), member("c")], {"a": 1, "b": 2, "c": 3})
CHANGE = order({"kept": [[0, 1], [2, 3]], "new": [member("d")]}, {"b": None, "d": 4})


@fuzz(150)
@given(st.lists(mutated_json(st.sampled_from([FULL, CHANGE, {"type": "halt"}])), max_size=4))
@example([order([member("a")] * 300, {}), order({"kept": [[0, 300]] * 300, "new": []}, {})])
@example([FULL, order({"kept": [[0, 10**18]], "new": []}, {})])
@example([FULL, order({"kept": [[-3, -1]], "new": []}, {})])
def test_orders_are_made_whole_within_their_bytes_or_refused(orders: list[Any]) -> None:
    def read() -> None:
        whole, sent = RunOrders(), 0
        for each in orders:
            if not isinstance(each, dict) or not isinstance(each.get("type"), str):
                continue
            found = whole.complete(each)
            if found["type"] == "run":
                listed = each["membership"]["members"]
                sent += len(listed["new"] if isinstance(listed, dict) else listed)
                assert len(found["membership"]["members"]) <= sent

    with contextlib.suppress(KeyError, TypeError, ValueError):
        measured(read, size_of(orders))


def test_differences_are_made_whole() -> None:
    orders = RunOrders()
    orders.complete(FULL)
    whole = order([member("a"), member("c"), member("d")], {"a": 1, "c": 3, "d": 4})
    assert orders.complete(CHANGE) == whole
