"""A state of a given size, as a model with AdamW has it, and the steps that change it.

A third of it is parameters, two thirds are moments. Imported by workloads.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

PIECE = 1 << 20  # parameters in one tensor
PLAIN_STEPS = 5  # that show the time of a step without a save


class Training:
    """The state to save or restore. A step computes for `seconds`, then the optimizer steps."""

    def __init__(self, megabytes: int, compute_seconds: float = 0.0) -> None:
        count = megabytes * 1_000_000 // 12
        sizes = [PIECE] * (count // PIECE) + [count % PIECE] * (count % PIECE > 0)
        self.model = nn.ParameterList([nn.Parameter(torch.randn(size)) for size in sizes])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.compute_seconds = compute_seconds
        self._matrix = torch.randn(256, 256)
        took = [self.step() for _ in range(PLAIN_STEPS)]
        self.usual = statistics.median(took[1:])  # seconds of the optimizer's part

    def step(self) -> float:
        """One step; returns seconds of the optimizer's part."""
        end = time.perf_counter() + self.compute_seconds
        while time.perf_counter() < end:
            self._matrix @ self._matrix
        begun = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - begun

    def state(self) -> dict[str, Any]:
        """Return the state as torch's own means save it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def take(self, state: dict[str, Any]) -> None:
        """Inverse of state()."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def synced(path: Path) -> None:
    """All files below it are on the disk."""
    for each in [*path.rglob("*"), path] if path.is_dir() else [path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
