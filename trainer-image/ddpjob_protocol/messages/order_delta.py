"""A `run` order as its difference to the `run` order before it on the same connection.

A change of a large membership concerns few members, but each member receives the order. So only
the first order of a connection has all members:

    "members": [...], "reach": {...}                                          all of both
    "members": {"kept": [[0, 4], [5, 9]], "new": [...]}, "reach": {...}       what differs

`kept` are ranges of the members before; members keep their order, and new ones follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Member

Reach = dict[str, Any]  # ports by worker; None: no longer known


def kept_members(
    before: Sequence[Member], after: Sequence[Member]
) -> tuple[list[list[int]], Sequence[Member]]:
    """Return the ranges of `before` that `after` begins with, and all members that follow."""
    places = {member: place for place, member in enumerate(before)}
    ranges: list[list[int]] = []
    for number, member in enumerate(after):
        place = places.get(member, -1)
        if ranges and place == ranges[-1][1]:
            ranges[-1][1] += 1
        elif place >= (ranges[-1][1] if ranges else 0):
            ranges.append([place, place + 1])
        else:
            return ranges, after[number:]
    return ranges, ()


def changed_reach(before: Mapping[str, int], after: Mapping[str, int]) -> Reach:
    """Return the entries that differ."""
    names = {**before, **after}
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


class RunOrders:
    """The `run` orders of one connection, made whole again."""

    def __init__(self) -> None:
        self._members: list[Message] = []
        self._reach: Reach = {}

    def complete(self, order: Message) -> Message:
        """Return the order with all members; raise KeyError, TypeError or ValueError if invalid."""
        if order["type"] != "run":
            return order
        membership = order["membership"]
        members, reach = membership["members"], order.get("reach", {})
        if isinstance(members, dict):
            members = [*self._kept(members["kept"]), *members["new"]]
            merged = {**self._reach, **reach}
            names = (member["worker"] for member in members)
            reach = {name: merged[name] for name in names if merged.get(name) is not None}
        if not isinstance(members, list) or not isinstance(reach, dict):
            raise TypeError("the members are no list, or the ports no object")
        self._members, self._reach = members, reach
        return {**order, "membership": {**membership, "members": members}, "reach": reach}

    def _kept(self, ranges: Sequence[Sequence[int]]) -> list[Message]:
        """Return the members in these ranges, which keep the order; so each is there once."""
        kept: list[Message] = []
        before = 0
        for start, end in ranges:
            if not before <= start <= end <= len(self._members):
                raise ValueError(
                    f"{start} to {end} is not a range of the members that follows {before}"
                )
            kept += self._members[start:end]
            before = end
        return kept
