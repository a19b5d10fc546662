"""Trains a small convolutional net on handwritten digits, on as many processes as there are.

Whatever their number, each step trains on the same 60 images: the loss curve stays the same.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import Snapshots, step_done

BATCH = 60  # images per step over all processes: 1, 2, 3, 4, 5 or 6 of them get equal shares


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    train(args, device)
    dist.destroy_process_group()
    # torch keeps gloo's threads of a model in DistributedDataParallel, and now and then one of
    # them aborts Python while it shuts down (torch 2.15). All is done and saved: leave at once.
    sys.stdout.flush()
    os._exit(0)


def train(args, device):
    rank, world = dist.get_rank(), dist.get_world_size()

    (images, labels), test = load_data(device)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(build_net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer)
    start, loss = loaded.step if loaded else 0, torch.tensor(torch.nan)
    if rank == 0:
        print(f"training from step {start} with {world} processes", flush=True)

    for step in range(start, args.steps):
        share = batch_of(step, len(labels), args.seed)[rank::world]
        total = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
        loss = total * world / BATCH  # DDP averages: the mean over the batch, however it is shared
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach() / world
        dist.all_reduce(loss)
        step_done(step + 1, args.steps, loss=loss.item())
        is_last = step + 1 == args.steps
        if snapshots.due(step + 1) or is_last:
            snapshots.save(step + 1, model=model, optimizer=optimizer, wait=is_last)

    if rank == 0:
        with torch.no_grad():
            correct = model.module(test[0]).argmax(1) == test[1]
        accuracy = correct.float().mean().item()
        step_done(args.steps, args.steps, loss=loss.item(), accuracy=accuracy)
        print(f"accuracy {accuracy:.4f}")
    dist.barrier()  # no process leaves while another one still works


def load_data(device):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return (images[train], labels[train]), (images[test], labels[test])


def batch_of(step, count, seed):
    """The same indices on every process, in a new order every epoch."""
    epoch, position = divmod(step, count // BATCH)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 10**6 + epoch))
    return order[position * BATCH :][:BATCH]


def build_net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


if __name__ == "__main__":
    main()
