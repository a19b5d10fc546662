"""The training script of every peer: a tiny DDP model on CPU that steps until it is killed.

Each process appends `time.time() step world` to a file of its own after every completed step, and
as step 0 before it imports torch, so that all peers are read from the clock by which the node was
killed. Steps restart from 0.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TextIO

STEP_SECONDS = 0.02


def train(log: TextIO) -> None:
    # ruff: noqa: PLC0415  (importing torch is part of what is measured)
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    world, step = dist.get_world_size(), 0
    while True:
        optimizer.zero_grad()
        model(torch.ones(8, 16)).square().mean().backward()
        optimizer.step()
        step += 1
        log.write(f"{time.time():.6f} {step} {world}\n")
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    with (Path(sys.argv[1]) / f"{os.getpid()}.steps").open("a", buffering=1) as file:
        file.write(f"{time.time():.6f} 0 {os.environ['WORLD_SIZE']}\n")
        train(file)
