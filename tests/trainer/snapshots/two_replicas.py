"""One rank of two that trains once for each case; writes the error that ended each.

two_replicas.py RANK OUT CASE...
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_protocol.environment import ENV_SNAPSHOT_EVERY
from ddpjob_trainer import SnapshotError, Snapshots

STEPS = 4


class Unused(nn.Module):
    """A model of which each step uses one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.branches[self.calls % 2](x)
        return found


class LowRank(nn.Module):
    """A frozen layer, with a trained product of two small matrices beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 1, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x.bfloat16()).float() + self.up(self.down(x))
        return found


def model_of(case: str) -> tuple[nn.Module, nn.Module]:
    """Return the model to save, and the model to call."""
    middle: dict[str, list[nn.Module]] = {
        "batch norm": [nn.BatchNorm1d(4)],
        "dropout": [nn.Dropout(0.5)],
    }
    layers = nn.Sequential(nn.Linear(4, 4), *middle.get(case, []), nn.Linear(4, 1))
    net: nn.Module = layers
    if case == "unused parameters":
        net = Unused()
    elif case == "low rank":
        net = LowRank()
    elif case == "two types":
        layers[0].bfloat16()
        net = nn.Sequential(Cast(torch.bfloat16), layers[0], Cast(torch.float32), layers[1])
    if case.startswith("no wrapper"):
        return net, net
    if case in ("a part wrapped", "frozen and drawn apart"):
        layers[0].requires_grad_(case == "a part wrapped")
        return net, nn.Sequential(layers[0], DistributedDataParallel(layers[1]))
    return net, DistributedDataParallel(
        net, broadcast_buffers=False, find_unused_parameters=case == "unused parameters"
    )


class Cast(nn.Module):
    """Casts its input."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.kind)


def train(case: str, rank: int, directory: Path) -> str:
    """Return the first error of a call to the snapshots; training continues after it."""
    torch.manual_seed(0 if case == "a part wrapped" else rank)
    net, model = model_of(case)
    optimizer = torch.optim.SGD(
        [each for each in net.parameters() if each.requires_grad], lr=0.1, momentum=0.9
    )
    average = copy.deepcopy(net) if case == "average on rank 0" and rank == 0 else None
    snapshots, problems = Snapshots(directory), []

    def attempt(call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except SnapshotError as error:
            problems.append(str(error))

    parts: dict[str, Any] = {"model": net, "optimizer": optimizer}
    snapshots.load(**parts)
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        model(inputs).square().mean().backward()
        optimizer.step()
        extra = average and average.state_dict()
        if case != "no wrapper, one save":
            if attempt(snapshots.due, step):
                attempt(snapshots.save, step, **parts, extra=extra)
        elif step == STEPS:
            if rank == 1:
                distributed.barrier()
            attempt(snapshots.save, step, **parts)
            if rank == 0:
                distributed.barrier()  # rank 1 saves later
    distributed.barrier()
    attempt(snapshots.wait)
    distributed.barrier()
    distributed.destroy_process_group()
    if not problems:
        snapshots.wait()
    return problems[0] if problems else ""


def main(rank: int, out: Path, cases: list[str]) -> None:
    logging.disable()
    torch.set_num_threads(1)
    os.environ[ENV_SNAPSHOT_EVERY] = "2"
    found = {}
    for number, case in enumerate(cases):
        distributed.init_process_group(
            "gloo", f"file://{out}/meet-{number}", world_size=2, rank=rank
        )
        found[case] = train(case, rank, out / f"case-{number}")
    (out / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # without destructors of gloo's threads: see two_ranks.py


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
