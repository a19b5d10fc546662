"""One rank of two that compares its orders with the other: different_orders.py RANK FOLDER."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from ddpjob_trainer import ElasticBatchSampler
from ddpjob_trainer.data.orders import weighted


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", world_size=2, rank=rank)

    def differs_later(epoch: int) -> Any:
        return weighted([1.0] * 9, 5, seed=epoch * rank)(epoch)

    batches = ElasticBatchSampler(9, 3, order=differs_later)
    while batches.epoch == 0:
        batches.share()
        if rank:
            batches.share()  # a rank that asks again alone does not wait for the other
        batches.commit()
    with pytest.raises(ValueError, match=r"order\(1\) of rank 1 is not that of rank 0"):
        batches.share()
    distributed.barrier()
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
