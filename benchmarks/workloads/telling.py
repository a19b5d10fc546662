"""The files of the equivalence benchmark's processes.

Each writes to files of its own, which outlive it: the loss of every sample that it is about to
learn from, and in the end its parameters and how good they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from benchmarks.workloads.tasks import Task


class Telling:
    """The files of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = (folder / f"{os.getpid()}.losses").open("a", buffering=1)

    def begun(self, group: str, step: int, place: tuple[int, int]) -> None:
        """A step, in this group, by this rank of a number of ranks; it may have no samples."""
        self._write(group, step, place, {})

    def losses(
        self, group: str, step: int, place: tuple[int, int], samples: torch.Tensor,
        losses: torch.Tensor,
    ) -> None:  # fmt: skip
        """Before they are learnt from."""
        found = dict(zip(samples.tolist(), losses.detach().tolist(), strict=True))
        self._write(group, step, place, found)

    def _write(
        self, group: str, step: int, place: tuple[int, int], found: dict[int, float]
    ) -> None:
        self._rows.write(json.dumps([group, step, *place, found]) + "\n")

    def end(self, task: Task) -> None:
        """All is learnt."""
        parameters = torch.cat([each.detach().flatten() for each in task.model.parameters()])
        final = {"parameters": parameters.tolist(), **task.judge()}
        path = self._folder / f"{os.getpid()}.final"
        path.with_suffix(".part").write_text(json.dumps(final))
        path.with_suffix(".part").rename(path)
