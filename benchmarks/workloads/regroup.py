"""The minimum cost of a change in memory: plain torch, no launcher, all processes know the plan.

Four processes, of which three train until number 2 is killed. The others continue; after STEPS
steps number 3, which has waited with everything imported, joins them and gets their parameters;
after as many it leaves again. Each change is: leave the group, enter the next one in the same
store, wrap the model, step.    regroup.py FOLDER PORT NUMBER tiny|large
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed as dist
from benchmarks.workloads.common import STEP_SECONDS, StepLog, Training, training
from torch.nn.parallel import DistributedDataParallel

STEPS = 10
PLAN: tuple[tuple[tuple[int, ...], int | None], ...] = (  # the members, and the number of steps
    ((0, 1, 2), None),  # until it breaks
    ((0, 1), STEPS),
    ((0, 1, 3), STEPS),
    ((0, 1), None),
)


def train(log: StepLog, trained: Training, store: dist.Store, me: int) -> None:
    done, before = 0, PLAN[0][0]
    for number, (members, steps) in enumerate(PLAN):
        if me in members:
            dist.init_process_group(
                "gloo", store=dist.PrefixStore(str(number), store),
                rank=members.index(me), world_size=len(members),
            )  # fmt: skip
            for newcomer in set(members) - set(before):
                hand_over(trained, me, newcomer)
            done += step_on(log, trained, done, len(members), steps)
            dist.destroy_process_group()
        before = members


def hand_over(trained: Training, me: int, newcomer: int) -> None:
    """From number 0, whose rank is 0; the newcomer's rank is the last."""
    for parameter in trained.model.parameters():
        if me == newcomer:
            dist.recv(parameter.data, 0)
        elif me == 0:
            dist.send(parameter.data, dist.get_world_size() - 1)


def step_on(log: StepLog, trained: Training, done: int, world: int, steps: int | None) -> int:
    """Steps until it was enough, or a collective breaks; returns how many were done."""
    wrapped, count = DistributedDataParallel(trained.model, init_sync=False), 0
    while steps is None or count < steps:
        try:
            trained.step(wrapped)
        except RuntimeError:
            break
        count += 1
        log.write(done + count, world)
        time.sleep(STEP_SECONDS)
    return count


if __name__ == "__main__":
    folder, port, number, size = sys.argv[1:]
    importlib.import_module("torch._dynamo")  # DDP would, for a second, amid the first change
    what = training(size)
    client = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    step_log = StepLog(Path(folder))
    step_log.write(0, 0)  # ready
    train(step_log, what, client, int(number))
