"""One training process that saves now and then: prints what each save cost, as JSON lines.

    saving.py WAY MEGABYTES COMPUTE_SECONDS SAVES EVERY FOLDER

A line has, in seconds: `stall`, by which training was held up; `durable`, of another save, from the
call until all is on the disk, with no training beside it. Then EVERY steps in a row with a save
after each, and one line: `more`, by which such a step took longer, and `share`, of these saves that
were not left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.state_of import Training, synced

POLL_SECONDS = 0.002  # of a file that marks the end of another process


class Way(Protocol):
    """A way to save the state."""

    def save(self, step: int) -> bool:
        """False: it is left out."""

    def durable(self) -> float:
        """Waits until the last one is on the disk; when that was."""


class Ours(Way):
    """`Snapshots`, all settings at their defaults but `keep`."""

    def __init__(self, training: Training, folder: Path) -> None:
        from ddpjob_trainer import Snapshots  # noqa: PLC0415 - not where DLRover is
        from ddpjob_trainer.reporting import progress  # noqa: PLC0415 - not where DLRover is

        self._training = training
        self._snapshots = Snapshots(folder, keep=1)
        self._at = 0.0
        progress.saved = self._saved

    def _saved(self, *_: Any, **__: Any) -> None:
        self._at = time.perf_counter()

    def save(self, step: int) -> bool:
        training = self._training
        return self._snapshots.save(step, model=training.model, optimizer=training.optimizer)

    def durable(self) -> float:
        self._snapshots.wait()
        return self._at


class TorchSave(Way):
    """`torch.save`, each time to the same file."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._path = folder / "state.pt"

    def save(self, step: int) -> bool:
        del step
        torch.save(self._training.state(), self._path)
        return True

    def durable(self) -> float:
        synced(self._path)
        at = time.perf_counter()
        self._path.unlink()
        return at


class Dcp(Way):
    """`torch.distributed.checkpoint`; an asynchronous save first waits for the one before."""

    def __init__(self, training: Training, folder: Path, kind: str | None = None) -> None:
        self._training = training
        self._folder = folder
        self._kind = kind
        self._path = folder
        self._future: Any = None

    def save(self, step: int) -> bool:
        self._settle()
        self._path = self._folder / str(step)
        state = self._training.state()
        if self._kind is None:
            checkpoint.save(state, checkpoint_id=self._path)
        else:
            kind = AsyncCheckpointerType(self._kind)
            self._future = checkpoint.async_save(
                state, checkpoint_id=self._path, async_checkpointer_type=kind
            )
        return True

    def durable(self) -> float:
        self._settle()
        synced(self._path)
        at = time.perf_counter()
        for each in self._folder.iterdir():
            shutil.rmtree(each)
        return at

    def _settle(self) -> None:
        if self._future is not None:
            self._future.result()


class Flash(Way):
    """DLRover's flash checkpoint: a copy to shared memory, written by a process of its own."""

    def __init__(self, training: Training, folder: Path) -> None:
        from dlrover.trainer.torch.flash_checkpoint import checkpointer, ddp  # noqa: PLC0415 - not in this environment

        self._training = training
        self._folder = folder
        self._kind = checkpointer.StorageType.DISK
        self._checkpointer = ddp.DdpCheckpointer(str(folder))
        self._last = 0

    def save(self, step: int) -> bool:
        number = step + 1  # it takes 0 for none
        self._checkpointer.save_checkpoint(number, self._training.state(), storage_type=self._kind)
        if self._checkpointer._engine.latest_step != number:  # noqa: SLF001 - it tells nobody
            return False
        self._last = number
        return True

    def durable(self) -> float:
        tracker = self._folder / "dlrover_latest.txt"
        while not tracker.exists() or tracker.read_text() != str(self._last):
            time.sleep(POLL_SECONDS)
        synced(self._folder / str(self._last))
        at = time.perf_counter()
        shutil.rmtree(self._folder / str(self._last))
        return at


WAYS: dict[str, Callable[[Training, Path], Way]] = {
    "ddpjob": Ours,
    "torch.save": TorchSave,
    "DCP save": Dcp,
    "DCP async_save, thread": lambda training, folder: Dcp(training, folder, "thread"),
    "DCP async_save, process": lambda training, folder: Dcp(training, folder, "process"),
    "DLRover flash checkpoint": Flash,
}


def roofs(megabytes: int, folder: Path) -> dict[str, float]:
    """Measure the time to copy this size in memory, and to write it to the disk."""
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


def alone(way: Way, training: Training, step: int) -> dict[str, float]:
    """A save with a step after it, and one that is only waited for."""
    begun = time.perf_counter()
    assert way.save(2 * step)
    called = time.perf_counter() - begun
    stall = called + training.step() - training.usual
    way.durable()
    begun = time.perf_counter()
    assert way.save(2 * step + 1)
    return {"stall": max(1e-6, stall), "durable": way.durable() - begun}


def in_a_row(way: Way, training: Training, steps: range) -> dict[str, float]:
    """A save after every step."""
    begun = time.perf_counter()
    kept = 0
    for step in steps:
        kept += way.save(step)
        training.step()
    took = (time.perf_counter() - begun) / len(steps)
    way.durable()
    usual = training.usual + training.compute_seconds
    return {"more": max(1e-6, took - usual), "share": kept / len(steps)}


def main(
    name: str, megabytes: int, compute_seconds: float, saves: int, every: int, folder: Path
) -> None:
    torch.set_num_threads(1)
    if name == "roofs":
        for _ in range(saves):
            print(json.dumps(roofs(megabytes, folder)), flush=True)
        return
    if name.startswith("DCP"):
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    training = Training(megabytes, compute_seconds)
    way = WAYS[name](training, folder)
    alone(way, training, 0)  # makes what is used again
    for step in range(1, saves + 1):
        print(json.dumps(alone(way, training, step)), flush=True)
    if every:
        first = 2 * saves + 2
        steps = range(first, first + every)
        print(json.dumps(in_a_row(way, training, steps)), flush=True)


if __name__ == "__main__":
    numbers = (int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    main(sys.argv[1], *numbers, Path(sys.argv[6]))
