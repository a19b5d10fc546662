"""One of several replicas: trains once for each case, and writes which error ended it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop
from ddpjob_trainer.elastic.state.replica_check import ReplicaError

STEPS = 4


class Frozen(nn.Module):
    """A model whose state_dict() has no frozen weights, such as pretrained ones."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.frozen(inputs))
        return found

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if "frozen" not in name}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        del strict
        return super().load_state_dict(state, strict=False, assign=assign)


def two_models(case: str, rank: int) -> tuple[nn.Module, str]:
    generator, critic = nn.Linear(3, 4), nn.Linear(4, 1)
    models = nn.ModuleDict({"g": generator, "d": critic})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(critic.parameters(), lr=0.01),
        torch.optim.SGD(generator.parameters(), lr=0.1, momentum=0.9),
    ]
    loop = Loop(models, optimizers, steps=STEPS, check_replicas="not compared" not in case)
    for step in loop:
        with step:
            inputs = torch.full((2, 3), float(step.rank + step.number))
            for optimizer, sign in zip(optimizers, (1, -1), strict=True):
                optimizer.zero_grad()
                (sign * loop.model["d"](loop.model["g"](inputs))).sum().backward()
                optimizer.step()
            with torch.no_grad():
                if case.startswith("one weight") and step.number == 0 and rank == 1:
                    critic.bias.add_(1)
                if case == "after the last step" and step.number == STEPS - 1 and rank == 2:
                    generator.weight.data[1, 1] = 7
                if case == "another momentum" and step.number == STEPS - 1 and rank == 0:
                    optimizers[1].state[generator.weight]["momentum_buffer"][0] = 1
    return models, str(sum(each.double().sum().item() for each in models.parameters()))


def one_model(case: str, rank: int) -> tuple[nn.Module, str]:
    model: nn.Module = Frozen()
    if case == "other buffers":
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    loop = Loop(model, optimizer, steps=STEPS, broadcast_buffers=False)
    for step in loop:
        with step:
            optimizer.zero_grad()
            inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank + step.number))
            loop.model(inputs).square().sum().backward()
            optimizer.step()
    return model, str(sum(each.double().sum().item() for each in model.parameters()))


def accumulated(*_: object) -> tuple[nn.Module, str]:
    """Train on seven batches of three and one sample, three for each step; compare with plain torch."""
    inputs = torch.randn(22, 3, generator=torch.Generator().manual_seed(5))

    def make() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    model, optimizer = make()
    sampler = ElasticBatchSampler(inputs, 3, shuffle=False)
    loader = DataLoader(TensorDataset(inputs), batch_sampler=sampler)
    loop = Loop(model, optimizer, loader=loader, epochs=1, accumulate=3)
    steps = 0
    for step in loop:
        with step:
            optimizer.zero_grad()
            for (part,) in step.parts():
                assert len(part) == 1, "as much at a time as without accumulation"
                step.backward(loop.model(part).square().mean())
            optimizer.step()
        steps += 1
    reference, optimizer = make()
    for batch in inputs.split(9):
        optimizer.zero_grad()
        reference(batch).square().mean().backward()
        optimizer.step()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    equal = all(torch.allclose(mine, other, atol=1e-6) for mine, other in pairs)
    return model, f"{steps} steps{', as in one process' if equal else ''}"


TRAIN: dict[str, Callable[[str, int], tuple[nn.Module, str]]] = {
    "frozen weights": one_model,
    "other buffers": one_model,
    "accumulated": accumulated,
}


def main(ports: list[str], cases: list[str]) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    found = {}
    for number, case in enumerate(cases):
        os.environ["MASTER_PORT"] = ports[number]  # of another store
        train = TRAIN.get(case, two_models)
        try:
            found[case] = ["", train(case, rank)[1]]
        except ReplicaError as error:
            found[case] = [str(error), ""]
            distributed.destroy_process_group()
    Path(f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
