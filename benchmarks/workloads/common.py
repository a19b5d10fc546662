"""The shared parts of the training scripts: the model, and the file of steps for all measures.

Each process appends `time.time() step world` to a file of its own after every completed step, and
step 0 when it starts. All peers are measured by the clock by which the node was killed.
Does not import torch before it is asked for a model: that is part of what is measured.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

STEP_SECONDS = 0.02  # between two steps
TINY, LARGE = "tiny", "large"


class StepLog:
    """The file of this process."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}.steps").open("a", buffering=1)

    def write(self, step: int, world: int) -> None:
        """Record that `step` steps are done, the last one in a group of that size."""
        self._file.write(f"{time.time():.6f} {step} {world}\n")


class Training(NamedTuple):
    """The model that is trained: no data, no loss with a meaning."""

    model: torch.nn.Module
    inputs: torch.Tensor
    optimizer: torch.optim.Optimizer

    def step(self, wrapped: torch.nn.Module) -> None:
        """One step, by the model or what DDP made of it."""
        self.optimizer.zero_grad()
        wrapped(self.inputs).square().mean().backward()
        self.optimizer.step()


def training(size: str) -> Training:
    """Tiny: one layer of 17 parameters. Large: 21 million, 84 MB, in ten tensors."""
    import torch  # noqa: PLC0415 - see above

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = {TINY: [(16, 1)], LARGE: [(2048, 2048)] * 5}[size]
    model = torch.nn.Sequential(*(torch.nn.Linear(*shape) for shape in layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Training(model, torch.ones(8, layers[0][0]), optimizer)
