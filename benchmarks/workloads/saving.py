"""One training process that saves now and then: prints what each save cost, as JSON lines.

    saving.py WAY MEGABYTES COMPUTE_SECONDS SAVES FOLDER

The state is a model with AdamW: a third parameters, two thirds moments. A step computes for so many
seconds on one core, then the optimizer steps. A line has, in seconds: `stall`, by which training
was held up; `durable`, from the call until all is on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from ddpjob_trainer import Snapshots, reporting

PIECE = 1 << 20  # parameters in one tensor
PLAIN_STEPS = 5  # that tell what a step takes without a save


class Training:
    """What is saved, and the steps between two saves."""

    def __init__(self, megabytes: int, compute_seconds: float) -> None:
        count = megabytes * 1_000_000 // 12
        sizes = [PIECE] * (count // PIECE) + [count % PIECE] * (count % PIECE > 0)
        self.model = nn.ParameterList([nn.Parameter(torch.randn(size)) for size in sizes])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6)
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self._compute_seconds = compute_seconds
        self._matrix = torch.randn(256, 256)
        self.usual = 0.0  # seconds of the optimizer's step
        took = [self.step() for _ in range(PLAIN_STEPS)]
        self.usual = statistics.median(took[1:])

    def step(self) -> float:
        """One step; returns seconds of the optimizer's part."""
        end = time.perf_counter() + self._compute_seconds
        while time.perf_counter() < end:
            self._matrix @ self._matrix
        begun = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - begun

    def state(self) -> dict[str, Any]:
        """What torch's own means save."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


Save = Callable[[int], "Callable[[], float]"]  # save it; what is returned waits, and says when


def synced(path: Path) -> None:
    """All files below it are on the disk."""
    for each in [*path.rglob("*"), path] if path.is_dir() else [path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def ours(training: Training, folder: Path) -> Save:
    done, at = threading.Event(), [0.0]

    def saved(*_: Any, **__: Any) -> None:
        at[0] = time.perf_counter()
        done.set()

    reporting.saved = saved
    snapshots = Snapshots(folder, keep=1)

    def save(step: int) -> Callable[[], float]:
        done.clear()
        assert snapshots.save(step, model=training.model, optimizer=training.optimizer)

        def wait() -> float:
            done.wait()
            snapshots.wait()
            return at[0]

        return wait

    return save


def torch_save(training: Training, folder: Path) -> Save:
    def save(step: int) -> Callable[[], float]:
        path = folder / f"{step}.pt"
        torch.save(training.state(), path)

        def wait() -> float:
            synced(path)
            at = time.perf_counter()
            path.unlink()
            return at

        return wait

    return save


def dcp(training: Training, folder: Path, kind: str | None = None) -> Save:
    options: dict[str, Any] = {}
    if kind is not None:
        options["async_checkpointer_type"] = AsyncCheckpointerType(kind)

    def save(step: int) -> Callable[[], float]:
        path = folder / str(step)
        how: Callable[..., Any] = checkpoint.save if kind is None else checkpoint.async_save
        future = how(training.state(), checkpoint_id=path, **options)

        def wait() -> float:
            if kind is not None:
                future.result()
            synced(path)
            at = time.perf_counter()
            shutil.rmtree(path)
            return at

        return wait

    return save


WAYS: dict[str, Callable[[Training, Path], Save]] = {
    "ddpjob": ours,
    "torch.save": torch_save,
    "DCP save": dcp,
    "DCP async_save, thread": lambda training, folder: dcp(training, folder, "thread"),
    "DCP async_save, process": lambda training, folder: dcp(training, folder, "process"),
}


def roofs(megabytes: int, folder: Path) -> dict[str, float]:
    """What copying so much in memory takes, and writing it to the disk."""
    source = torch.ones(megabytes * 1_000_000, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)
    begun = time.perf_counter()
    target.copy_(source)
    copied = time.perf_counter()
    with (folder / "roof").open("xb", buffering=0) as file:
        content = memoryview(source.numpy().data)
        while content:
            content = content[file.write(content[: 8 << 20]) :]
        os.fsync(file.fileno())
    written = time.perf_counter()
    (folder / "roof").unlink()
    return {"memcpy": copied - begun, "fsync write": written - copied}


def main(way: str, megabytes: int, compute_seconds: float, saves: int, folder: Path) -> None:
    torch.set_num_threads(1)
    if way == "roofs":
        for _ in range(saves):
            print(json.dumps(roofs(megabytes, folder)), flush=True)
        return
    if way.startswith("DCP"):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    training = Training(megabytes, compute_seconds)
    save = WAYS[way](training, folder)
    for number in range(saves + 1):
        begun = time.perf_counter()
        wait = save(number)
        called = time.perf_counter() - begun
        stall = called + training.step() - training.usual
        took = {"stall": max(1e-6, stall), "durable": wait() - begun}
        if number:  # the first one makes what is used again
            print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
