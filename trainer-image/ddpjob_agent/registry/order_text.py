"""The JSON of orders. Most of an order is common to all members, and is encoded once for all."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.order_delta import changed_reach, kept_members

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Membership

NOTHING = "{}"
MAX_TEXTS = 8  # encoded orders that one common part keeps

_numbers = itertools.count()


class CommonPart:
    """The fields that the orders of several workers have in common.

    Parts are equal if an agent acts alike on both. The facts of a `run` order may still differ.
    """

    def __init__(self, key: Message) -> None:
        self.key = key
        self._number = next(_numbers)
        self._texts: dict[tuple[int, str], bytes] = {}

    def has_facts_of(self, _other: CommonPart) -> bool:
        """Return whether the facts are the same, too."""
        return True

    def order(self, own: str, base: RunPart | None) -> bytes:
        """Return an order with fields of one worker, which has received the `base`."""
        ending = "," + own[1:] if own != NOTHING else NOTHING[1:]
        which = (-1 if base is None else base._number, ending)  # noqa: SLF001 - its own class
        if which not in self._texts:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            self._texts[which] = (self._head(base) + ending).encode()
        return self._texts[which]

    def _head(self, _base: RunPart | None) -> str:
        return _json(self.key)[:-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommonPart) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key["type"])


class Members:
    """The members of one membership; encoded as a whole at most once."""

    def __init__(self, membership: Membership, seal: str) -> None:
        self.membership = membership
        self.seal = seal

    @functools.cached_property
    def whole(self) -> str:
        """All members, as JSON."""
        return _json(encode(self.membership.members))


class RunPart(CommonPart):
    """The common part of the orders to run one membership."""

    def __init__(
        self, key: Message, members: Members, port: int | None, reach: dict[str, int]
    ) -> None:
        super().__init__(key)
        self.members = members
        self.port = port
        self.reach = reach

    def has_facts_of(self, other: CommonPart) -> bool:
        """Return whether the ports are the same, too."""
        return isinstance(other, RunPart) and (self.port, self.reach) == (other.port, other.reach)

    def _head(self, base: RunPart | None) -> str:
        membership, reach = self.members.membership, self.reach
        if base is None:
            members = self.members.whole
        else:
            kept, new = kept_members(base.members.membership.members, membership.members)
            members = _json({"kept": kept, "new": encode(new)})
            reach = changed_reach(base.reach, reach)
        about = encode(dataclasses.replace(membership, members=()))
        del about["members"]
        rest = {**self.key, "seal": self.members.seal, "port": self.port, "reach": reach}
        kind = {"type": rest.pop("type")}
        return (
            f'{_json(kind)[:-1]},"membership":{_json(about)[:-1]},"members":{members}}},'
            f"{_json(rest)[1:-1]}"
        )


@dataclasses.dataclass(frozen=True)
class Order:
    """The order for one worker; equal to the last one if the worker needs no new one."""

    common: CommonPart
    own: str = NOTHING  # its own fields, as a JSON object

    def to_json(self, base: RunPart | None = None) -> bytes:
        """Return the order for an agent; `base` is the last `run` order on its connection."""
        return self.common.order(self.own, base)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
