"""One rank of two: 0 gives a state to 1, which compares it: giver_and_taker.py RANK FOLDER."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import distributed

from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion, exchange
from ddpjob_trainer.transfer.broadcast import PACK_BYTES
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


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", world_size=2, rank=rank)
    taken = exchange(
        Agreement((StateVersion(3, BEGINNING), None)), rank, torch.device("cpu"), state
    )
    assert (taken is None) == (rank == 0)
    if taken is not None:
        assert_same(state(), taken)
    distributed.barrier()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
