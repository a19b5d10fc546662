"""The same task as torch's own elastic example does it: restart, snapshot, DistributedSampler.

Ends with a snapshot once STEP steps are done, and resumes from it when it is started again.
stock_task.py FOLDER digits|gpt --seed N --until STEP [--divide] [--last]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from benchmarks.workloads.tasks import losses, make
from benchmarks.workloads.telling import Telling
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

PROCESSES = 4  # for which a batch size of its own was chosen, as scripts have one


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--divide", action="store_true", help="keep the batch of all processes")
    parser.add_argument("--last", action="store_true")
    args = parser.parse_args()

    distributed.init_process_group("gloo")
    task = make(args.task, args.seed, dropout=0.0)
    file, position = args.folder / "snapshot.pt", {"epoch": 0, "batch": 0, "step": 0}
    if file.exists():
        snapshot = torch.load(file)
        task.model.load_state_dict(snapshot["model"])
        task.optimizer.load_state_dict(snapshot["optimizer"])
        position = snapshot["position"]
    model = DistributedDataParallel(task.model)
    sampler: DistributedSampler[Any] = DistributedSampler(task.data, seed=args.seed)
    share = -(-task.batch // (distributed.get_world_size() if args.divide else PROCESSES))
    loader = DataLoader(task.data, batch_size=share, sampler=sampler)
    telling, place = Telling(args.folder), (distributed.get_rank(), distributed.get_world_size())
    for samples, inputs, targets in batches(loader, sampler, position, args.until):
        task.optimizer.zero_grad()
        each = losses(model(inputs), targets)
        telling.losses("0.0.0", position["step"], place, samples, each)
        each.mean().backward()
        task.optimizer.step()
        position["step"] += 1
    if args.last:
        telling.end(task)
    elif place[0] == 0:
        state = {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}
        torch.save({**state, "position": position}, file)
    distributed.barrier()
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # as in examples/digits/train.py


def batches(
    loader: DataLoader[Any], sampler: DistributedSampler[Any], position: dict[str, int], until: int
) -> Iterator[Any]:
    """From the position on, which is kept up to date, epoch after epoch."""
    while True:
        sampler.set_epoch(position["epoch"])
        for number, batch in enumerate(loader):
            if number < position["batch"]:
                continue  # done before the snapshot
            if position["step"] == until:
                return
            position["batch"] = number + 1
            yield batch
        position["epoch"], position["batch"] = position["epoch"] + 1, 0


if __name__ == "__main__":
    main()
