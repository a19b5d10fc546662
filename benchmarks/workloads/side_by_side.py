"""One of two processes that train twice: by hand, and in ddpjob's loop, a step each by turns.

    side_by_side.py small|medium WAY PAIRS STEPS FILE

WAY is `loop`, or `deterministic-8` for 8 shards of a batch. Both trainings have the same data,
process group and kind of model. STEPS steps of each make a pair: rank 0 writes a JSON line for it,
milliseconds per step, `by hand` and in the loop. Which of them is first changes with each pair. Both
processes begin each step together. Each keeps to a core of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR, ENV_WORKER

WORLD_SIZE = 2
BATCH = 128  # of both ranks
BATCHES = 50  # in an epoch


class Size(NamedTuple):
    """The size of the model: number of layers, and their width."""

    width: int
    layers: int


SIZES = {"small": Size(128, 2), "medium": Size(1024, 4)}


def keep_to_a_core() -> None:
    """Before torch is imported, so that all threads do."""
    worker = os.environ.get(ENV_WORKER)  # such as probe-worker-001-1
    number = int(worker.split("-")[-2]) if worker else int(os.environ["RANK"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def train(size: Size, *, shards: int | None, pairs: int, steps: int, file: Path) -> None:
    # ruff: noqa: PLC0415  (see keep_to_a_core)
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from ddpjob_trainer import ElasticBatchSampler, Loop

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(BATCH * BATCHES, size.width)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        layers = [
            nn.Sequential(nn.Linear(size.width, size.width), nn.LayerNorm(size.width), nn.GELU())
            for _ in range(size.layers)
        ]
        model = nn.Sequential(*layers, nn.Linear(size.width, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    loss_fn = nn.MSELoss()

    def by_hand() -> Iterator[None]:
        model, optimizer = made()
        wrapped = DistributedDataParallel(model)
        sampler: DistributedSampler[int] = DistributedSampler(data)
        loader = DataLoader(data, batch_size=BATCH // WORLD_SIZE, sampler=sampler)
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            for values, targets in loader:
                optimizer.zero_grad()
                loss_fn(wrapped(values), targets).backward()
                optimizer.step()
                yield

    def in_loop() -> Iterator[None]:
        model, optimizer = made()
        loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
        total = 1 + (pairs + 1) * steps
        loop = Loop(model, optimizer, loader=loader, steps=total, deterministic=shards)
        for step in loop:
            with step:
                optimizer.zero_grad()
                for values, targets in step.parts():
                    step.backward(loss_fn(loop.model(values), targets))
                optimizer.step()
            yield

    def seconds(training: Iterator[None]) -> float:
        distributed.barrier()
        begun = time.perf_counter()
        next(training)
        return time.perf_counter() - begun

    ours, plain = in_loop(), by_hand()
    next(ours)  # now there is a group
    ways = [("by hand", plain), ("loop", ours)]
    for number in range(-1, pairs):  # the first pair warms up
        took = {name: 0.0 for name, _ in ways}
        for name, training in ways[:: -1 if number % 2 else 1] * steps:
            exact = shards is not None and name == "loop"
            torch.use_deterministic_algorithms(exact, warn_only=True)
            took[name] += seconds(training) / steps * 1000
        if number >= 0 and distributed.get_rank() == 0:
            with file.open("a") as lines:
                lines.write(json.dumps(took) + "\n")
    assert next(ours, "the end") == "the end"


if __name__ == "__main__":
    os.environ.pop(ENV_SNAPSHOT_DIR, None)  # what snapshots cost is measured elsewhere
    keep_to_a_core()
    shards_of_batch = sys.argv[2].removeprefix("deterministic-")
    train(
        SIZES[sys.argv[1]],
        shards=int(shards_of_batch) if shards_of_batch.isdecimal() else None,
        pairs=int(sys.argv[3]),
        steps=int(sys.argv[4]),
        file=Path(sys.argv[5]),
    )
