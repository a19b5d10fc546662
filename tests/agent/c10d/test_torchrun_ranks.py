"""The order of ranks, as read from the entries of torchrun; tests/jobs has a real torchrun."""

from __future__ import annotations

import json

import pytest

from ddpjob_agent.c10d.torchrun_ranks import TorchrunRanks
from ddpjob_protocol.messages.control import WorkerRanks

KEY = "/torch.rendezvous.a.b/c.{round}/torchelastic/role_info/{rank}"


def ranks_of(*places: tuple[str, int, int, int], key: str = KEY) -> TorchrunRanks:
    """Make the ranks from (worker, round, rank, processes) in the order of their writes."""
    ranks = TorchrunRanks()
    for worker, round_, rank, processes in places:
        info = {"role": "default", "rank": rank, "local_world_size": processes}
        name = key.format(round=round_, rank=rank).encode()
        ranks.observe(worker, name, json.dumps(info).encode())
    return ranks


IN_ORDER = (WorkerRanks("b", 0, 3), WorkerRanks("a", 3, 1))


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        pytest.param([("a", 0, 1, 1), ("b", 0, 0, 3)], IN_ORDER, id="unequal_workers"),
        pytest.param([("a", 0, 1, 1)], (), id="one_has_not_written"),
        pytest.param([("a", 0, 0, 1), ("b", 1, 1, 3)], (), id="another_round"),
        pytest.param([("a", 0, 1, 1), ("b", 0, 1, 3)], (), id="the_same_place"),
        pytest.param(
            [("a", 0, 0, 1), ("b", 0, 1, 3), ("a", 10, 1, 1), ("b", 9, 0, 3), ("b", 10, 0, 3)],
            IN_ORDER,
            id="the_newest_round",
        ),
        pytest.param(
            [("a", 1, 1, 1), ("b", 1, 0, 3), ("a", 0, 0, 1)], IN_ORDER, id="restored_late"
        ),
        pytest.param([("a", 0, 1, 1), ("b", 0, 0, 3), ("gone", 0, 2, 1)], IN_ORDER, id="no_member"),
    ],
)
def test_the_order_of_ranks(
    places: list[tuple[str, int, int, int]], expected: tuple[WorkerRanks, ...]
) -> None:
    assert ranks_of(*places).assigned(["a", "b"]) == expected


def test_the_key_of_an_older_torch() -> None:
    key = KEY.replace("info/", "info")
    assert ranks_of(("a", 0, 1, 1), ("b", 0, 0, 3), key=key).assigned("ab") == IN_ORDER


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"\xff", b"7", b"{}", b'{"rank": 0}', b'{"rank": [], "local_world_size": 1}',
        b'{"rank": 1e999, "local_world_size": 1}', b"[" * 1999,
        b'{"rank": 0, "local_world_size": 1, "role": "%s"}' % (b"x" * 2000),
    ],
    ids=range(10),
)  # fmt: skip
def test_an_entry_of_another_form_is_ignored(value: bytes | None) -> None:
    ranks = TorchrunRanks()
    ranks.observe("a", KEY.format(round=0, rank=0).encode(), value)
    assert ranks.assigned(["a"]) == ()


def test_long_keys_are_ignored() -> None:
    """A search in the key of a peer is short, whatever the peer writes."""
    ranks = TorchrunRanks()
    for long in ("torch.rendezvous." * 4000, "9" * 64_000, ".1/torchelastic/role_info/" * 3000):
        key = KEY.replace("a.b/c", long).format(round=0, rank=0).encode()
        ranks.observe("a", key, b'{"rank": 0, "local_world_size": 1}')
    assert ranks.assigned(["a"]) == ()
