"""One rank of two that save and load together; writes what it saw to OUT/RANK.json.

two_ranks.py RANK OUT {shared|apart|damaged|one damaged|numbers|name|disk}

In `shared` and `apart` both also load a large state, and measure their memory.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.tensors import safetensors_reader
from trainer.runs import Run
from trainer.snapshots.layout import folder_of, memory

HARMED = ("numbers", "name", "disk")  # what rank 0 has of the newest one


def damage(file: Path, text: bytes) -> None:
    """Flip a bit in this text, or in the last number."""
    content = file.read_bytes()
    at = content.index(text) if text else len(content) - 1
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])


def break_off_once() -> None:
    """The disk does not give the second piece of what is read next."""
    safetensors_reader.CHUNK_BYTES = 64  # type: ignore[attr-defined]
    read, seen = DirectoryFiles.read, 0

    def broken(*arguments: Any) -> bool:
        nonlocal seen
        seen += 1
        if seen == 3:  # the header, and one piece
            raise OSError(errno.EIO, "Input/output error")
        return read(*arguments)

    DirectoryFiles.read = broken  # type: ignore[assignment, method-assign]


def growth_of_a_load(directory: Path, rank: int) -> tuple[float, bool]:
    """Return the growth of this process's memory in a load, by what it then holds, and if it is right."""

    def state(value: float) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        model = torch.nn.Linear(2048, 4096, bias=False)
        model.weight.data.fill_(value)
        return model, torch.optim.AdamW(model.parameters())

    if rank == 0:
        saved, optimizer = state(0.5)
        saved.weight.grad = torch.ones_like(saved.weight)
        optimizer.step()
        Snapshots(directory).save(1, model=saved, optimizer=optimizer, wait=True)
        del saved, optimizer
    distributed.barrier()
    before = memory("VmRSS")
    model, optimizer = state(0.0)
    Path("/proc/self/clear_refs").write_text("5")  # the highest use from now on
    Snapshots(directory).load(model=model, optimizer=optimizer)
    growth = memory("VmHWM") - before
    moments = optimizer.state[model.weight]
    is_right = bool((moments["exp_avg"] == 0.1).all() and (model.weight > 0.49).all())
    return growth / (3 * model.weight.nbytes), is_right


def main(rank: int, out: Path, kind: str) -> None:
    logging.disable()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{out}/meet", world_size=2, rank=rank)
    directory = out / (f"of-{rank}" if kind not in ("shared", "damaged") else "shared")
    run = Run(seed=rank)
    model = DistributedDataParallel(run.model)
    snapshots = Snapshots(directory, check_replicas=False)  # their weights name the writer
    run.first.bias.data.fill_(float(rank + 1))
    if kind in HARMED:
        snapshots.save(4, model=model, optimizer=run.optimizer, wait=True)
    snapshots.save(5, model=model, optimizer=run.optimizer, wait=True)
    if kind == "disk" and rank == 0:
        break_off_once()
    elif kind in HARMED and rank == 0:
        file = folder_of(directory, 5) / "tensors.safetensors"
        damage(file, b"weight" if kind == "name" else b"")
    distributed.barrier()
    names = sorted(path.name for path in directory.glob("step-*"))
    if kind == "damaged":
        if rank == 0:
            damage(folder_of(directory, 5) / "tensors.safetensors", b"")
        distributed.barrier()
    if kind == "one damaged":
        Snapshots(directory).load(model=model)  # now both write
        snapshots.load(model=model)
        snapshots.save(5, model=model, optimizer=run.optimizer, wait=True)
        distributed.barrier()
        if rank == 0:
            damage(folder_of(directory, 5) / "tensors.safetensors", b"")
        distributed.barrier()
    run.first.bias.data.zero_()
    problem = step = None
    try:
        loaded = snapshots.load(model=model, optimizer=run.optimizer)
        step = loaded and loaded.step
    except SnapshotError as error:
        problem = str(error)
    bias = run.first.bias.tolist()
    if problem is None:
        snapshots.save(6, model=model, optimizer=run.optimizer, wait=True)
        distributed.barrier()
    later = sorted(path.name for path in directory.iterdir() if path.name[0] != "f")
    seen: dict[str, Any] = {
        "names": names,
        "problem": problem,
        "step": step,
        "bias": bias,
        "later": later,
    }
    if kind in ("shared", "apart"):
        distributed.barrier()
        seen["memory"] = growth_of_a_load(directory / "large", rank)
    (out / f"{rank}.json").write_text(json.dumps(seen))
    distributed.barrier()
    # gloo's threads may still free tensors of Python's: while Python ends that aborts
    # (pytorch/pytorch#179291), and DDP keeps them alive through destroy_process_group.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
