"""One rank of two: 0 gives a state to 1, which compares it: giver_and_taker.py RANK FOLDER."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import distributed

from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion, exchange
from ddpjob_trainer.transfer.broadcast import PACK_BYTES, StateSender
from trainer.runs import assert_same


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "large": torch.randn(PACK_BYTES // 4 + 3),
        "small": [torch.randn(size) for size in (1, 5, 7)],
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "strided": [torch.arange(9.0)[::2], torch.arange(12).reshape(3, 4).T],
        "kinds": (torch.tensor([True, False]), torch.arange(3), torch.ones(2).bfloat16()),
        "shared": [torch.ones(3), 1.5, None, float("inf"), {"nested": {1: "one"}}],
    }


def refuses_what_it_cannot_restore(rank: int) -> None:
    """The taker raises, and does not take its own weights for the newest ones."""
    device = torch.device("cpu")
    if rank == 0:
        sender = StateSender([1], device)
        sender.begin({"of another version": 1}, [])
        sender.end()
        return
    with pytest.raises(RuntimeError, match="that rank 0 sent to rank 1 cannot be restored"):
        exchange(Agreement((StateVersion(3, BEGINNING), None)), rank, device, state)


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", world_size=2, rank=rank)
    taken = exchange(
        Agreement((StateVersion(3, BEGINNING), None)), rank, torch.device("cpu"), state
    )
    assert (taken is None) == (rank == 0)
    if taken is not None:
        assert_same(state(), taken)
    refuses_what_it_cannot_restore(rank)
    distributed.barrier()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
