"""A task in ddpjob's loop (live mode): one global batch per step, with any workers.

live_task.py FOLDER digits|gpt --seed N --epochs N [--shards N] [--harm NAME --at STEP]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.harms import HARMS
from benchmarks.workloads.pace import Pace
from benchmarks.workloads.tasks import losses, make
from benchmarks.workloads.telling import Telling
from torch.utils.data import DataLoader

from ddpjob_protocol.environment import ENV_MEMBERSHIP, ENV_SNAPSHOT_DIR
from ddpjob_trainer import ElasticBatchSampler, Loop

DROPOUT = 0.1  # in deterministic mode, where random numbers do not depend on the rank


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--harm", choices=HARMS, default="none")
    parser.add_argument("--at", type=int, default=0)
    args = parser.parse_args()

    task = make(args.task, args.seed, dropout=DROPOUT if args.shards else 0.0)
    loader = DataLoader(
        task.data, batch_sampler=ElasticBatchSampler(task.data, task.batch, seed=args.seed)
    )
    loop = Loop(
        task.model, task.optimizer, loader=loader, epochs=args.epochs, deterministic=args.shards
    )
    telling, pace, harm = Telling(args.folder), Pace(args.folder), HARMS[args.harm](args.at)
    for step in loop:
        with step:
            task.optimizer.zero_grad()
            where = os.environ[ENV_MEMBERSHIP], step.number, (step.rank, step.world_size)
            telling.begun(*where)
            if step.number % 2:  # what happens now cuts the step off
                pace.keep(step.number)
            for part in step.parts():
                samples, inputs, targets = harm.part(step, part)
                each = losses(harm.model(loop.model)(inputs), targets)
                telling.losses(*where, samples, each)
                step.backward(each.mean() * harm.factor(step))
            if not step.number % 2:
                pace.keep(step.number)
            task.optimizer.step()
    telling.end(task)


if __name__ == "__main__":
    os.environ.pop(ENV_SNAPSHOT_DIR, None)  # processes stay: nothing is read from a disk
    main()
