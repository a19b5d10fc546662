"""Small training runs, and what it means for two states to be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer import Snapshots

if TYPE_CHECKING:
    from pathlib import Path


class Counter:
    """A user's own state."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Run:
    """A model with all that belongs to its training."""

    def __init__(self, seed: int = 0, width: int = 4) -> None:
        torch.manual_seed(seed)
        self.first = torch.nn.Linear(3, width)
        self.model = torch.nn.Sequential(
            self.first, torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9
        )

    def train(self, steps: int, *, first: int = 0) -> None:
        for step in range(first, first + steps):
            inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            self.model(inputs).square().sum().backward()
            self.optimizer.step()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def started(where: Path | str, keep: int = 3) -> Snapshots:
    """Return snapshots that have loaded, as those of a script that starts."""
    snapshots = Snapshots(where, keep)
    snapshots.load(**Run().parts())
    return snapshots


def assert_same(left: Any, right: Any, path: str = "state") -> None:
    """Equal to the bit, in type and in order of keys; nan equals nan."""
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype, path
        assert left.shape == right.shape, path
        assert torch.equal(left.nan_to_num(nan=7e7), right.nan_to_num(nan=7e7)), path
    elif isinstance(left, dict):
        assert [*map(repr, left)] == [*map(repr, right)], path
        for (key, a), b in zip(left.items(), right.values(), strict=True):
            assert_same(a, b, f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    else:
        assert left == right if isinstance(left, (set, frozenset)) else repr(left) == repr(right), (
            path
        )
