"""Trains on handwritten digits in snapshot mode; rank 0 logs each step to a tracker."""

import importlib
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import Snapshots, step_done

STEPS = 200
BATCH = 60
RATE = 0.2


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tracker = None
    if rank == 0:  # the other ranks have nothing to log
        tracker = importlib.import_module(f"with_{sys.argv[1]}").Tracker()

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer, scheduler=scheduler)

    for step in range(loaded.step if loaded else 0, STEPS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        share = order[:BATCH][rank::world]  # the same batch, whatever the number of processes
        total = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
        loss = total * world / BATCH
        rate = scheduler.get_last_lr()[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        loss = loss.detach() / world
        dist.all_reduce(loss)  # the loss of the whole batch
        if tracker:  # before the snapshot: no step that a snapshot contains lacks its metrics
            tracker.log(step + 1, loss=loss.item(), rate=rate)
        step_done(step + 1, STEPS, loss=loss.item())
        is_last = step + 1 == STEPS
        if snapshots.due(step + 1) or is_last:
            snapshots.save(
                step + 1, model=model, optimizer=optimizer, scheduler=scheduler, wait=is_last
            )

    if tracker:
        tracker.finish()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort Python while it shuts down (torch 2.15)


if __name__ == "__main__":
    main()
