"""One rank of up to four that save and load a sharded model; what it saw goes to OUT/RANK.json.

ranks.py RANK OUT. The ranks leave one by one: groups of four, three, two and one process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from ddpjob_protocol.environment import ENV_JOB_UID, ENV_MEMBERSHIP
from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.sharded.layout import local_of
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from trainer.snapshots.layout import folder_of, memory, storage_in

BATCH = 12  # of all ranks


def plain(seed: int) -> nn.Sequential:
    """A model of which some ranks hold more than others, and some nothing of a tensor."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6), nn.Linear(6, 1))


def optimizer_of(model: nn.Module, *, is_reversed: bool = False) -> torch.optim.Optimizer:
    """Two groups of parameters with settings of their own, in one order or the other."""
    named = [*model.named_parameters()][:: -1 if is_reversed else 1]
    weights = [each for name, each in named if "weight" in name]
    biases = [each for name, each in named if "bias" in name]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights, "lr": 0.02}]
    return torch.optim.AdamW(groups[:: -1 if is_reversed else 1], lr=0.01)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and results of a step, of all ranks together."""
    inputs = torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sum(1, keepdim=True).sin()


class Training:
    """A model that is sharded over the current group, and its optimizer."""

    def __init__(self, seed: int, kind: str = "fsdp", *, is_reversed: bool = False) -> None:
        self.model, self.kind = plain(seed), kind
        world = distributed.get_world_size() if kind != "plain" else 1
        if kind == "fsdp":
            mesh = init_device_mesh("cpu", (world,))
            for layer in (self.model[0], self.model[2], self.model):
                fully_shard(layer, mesh=mesh)
        elif kind == "both":
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.model, mesh["tensor"], plan)
            fully_shard(self.model, mesh=mesh["data"])
        elif kind == "tensor":
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.model, init_device_mesh("cpu", (world,)), plan)
        self.optimizer = optimizer_of(self.model, is_reversed=is_reversed)

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def train(self, first: int, last: int) -> None:
        """Do steps on the same batches for any number of ranks."""
        rank, world = 0, 1
        if self.kind == "fsdp":
            rank, world = distributed.get_rank(), distributed.get_world_size()
        for step in range(first, last):
            inputs, results = (each[rank::world] for each in batch(step))
            self.optimizer.zero_grad()
            error = (self.model(inputs) - results).square().sum()
            (error * world / BATCH).backward()
            self.optimizer.step()

    def loss(self) -> float:
        """The loss on data that no step has seen."""
        inputs, results = batch(10_000)
        with torch.no_grad():
            return float((self.model(inputs) - results).square().mean())


def error_of(do: Any) -> str:
    """Return the text of the SnapshotError; empty if there is none."""
    try:
        do()
    except SnapshotError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def large() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of 67 MB that no rank ever holds whole, and an optimizer with as much."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4)))
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    model.to_empty(device="cpu")
    return model, torch.optim.AdamW(model.parameters())


def save_large(out: Path) -> None:
    """With a state for the optimizer, which a step makes."""
    model, optimizer = large()
    for parameter in model.parameters():
        local_of(parameter).fill_(0.5)
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    Snapshots(out / "large").save(1, model=model, optimizer=optimizer, wait=True)


def load_large(out: Path) -> tuple[float, bool]:
    """Return the growth of this process's memory, as a share of what it holds, and if it is right."""
    before = memory("VmRSS")
    model, optimizer = large()
    Path("/proc/self/clear_refs").write_text("5")  # the highest use from now on
    Snapshots(out / "large").load(model=model, optimizer=optimizer)
    growth = memory("VmHWM") - before
    moments = [local_of(each["exp_avg"]) for each in optimizer.state.values()]
    weights = [local_of(each) for each in model.parameters()]
    is_right = all(bool((each == 0.1).all()) for each in moments) and len(moments) == len(weights)
    return growth / (3 * sum(each.nbytes for each in weights)), is_right


def damage(file: Path) -> None:
    """Flip a bit in the last number of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def four(out: Path, rank: int, seen: dict[str, Any]) -> None:
    """Save twice, and train on; load what a single process has saved."""
    training, snapshots = Training(1), Snapshots(out / "shared")
    seen["nothing"] = snapshots.load(**training.parts) is None
    training.train(0, 3)
    seen["saved"] = snapshots.save(3, **training.parts, extra={"best": 0.5}, wait=True)
    training.train(3, 5)
    seen["loss"] = training.loss()
    seen["saved too"] = snapshots.save(5, **training.parts, extra={"best": 0.25})
    training.train(5, 6)  # while step 5 is written
    snapshots.wait()
    distributed.barrier()
    training.train(6, 8)
    seen["loss later"] = training.loss()
    for kind in ("fsdp", "both", "tensor"):
        fresh = Training(2, kind)
        loaded = Snapshots(out / "plain").load(**fresh.parts)
        seen[f"from plain, {kind}"] = loaded and loaded.step, fresh.loss()
    both = Training(3, "both")
    loaded = Snapshots(out / "shared").load(**both.parts)
    seen["two dimensions"] = loaded and loaded.step, both.loss()
    seen["two dimensions saved"] = Snapshots(out / "both").save(5, **both.parts, wait=True)
    load, save = (Snapshots(out / f"apart-{rank}") for _ in range(2))
    seen["apart"] = [error_of(lambda: load.load(**training.parts)),
                     error_of(lambda: save.save(1, **training.parts))]  # fmt: skip
    if rank == 2:
        training.optimizer.param_groups[0]["note"] = object()
    save_large(out)
    seen["unsavable"] = error_of(lambda: snapshots.save(9, **training.parts, wait=True))


def fewer(out: Path, seen: dict[str, Any], kind: str = "fsdp") -> None:
    """Load what four have saved, into an optimizer of another order, and train on."""
    world = distributed.get_world_size()
    for folder in ("shared", "both"):
        training = Training(10 + world, kind, is_reversed=True)
        loaded = Snapshots(out / folder).load(**training.parts)
        step, extra = (loaded.step, loaded.extra) if loaded else (None, None)
        name = f"{folder}, {world} {kind}"
        seen[name] = step, training.loss(), extra
        training.train(5, 8)
        seen[f"{name} later"] = training.loss()


def two(out: Path, rank: int, seen: dict[str, Any]) -> None:
    """Find a damaged chunk; then a later membership comes; then a rank dies while it saves."""
    fewer(out, seen)
    fewer(out, seen, "tensor")
    seen["memory"] = load_large(out)
    os.environ |= {ENV_JOB_UID: "job", ENV_MEMBERSHIP: "1.1.2"}
    folder = out / "harmed"
    if rank == 0:
        shutil.copytree(out / "shared", folder)
        damage(folder_of(folder, 5) / "tensors-2.safetensors")
    distributed.barrier()
    training, snapshots = Training(4), Snapshots(folder)
    loaded = snapshots.load(**training.parts)
    seen["damaged"] = loaded and loaded.step, training.loss()
    distributed.barrier()
    if rank == 0:
        storage_in(folder, 3).fence(Owner("job", "1.2.2"), 3)
    distributed.barrier()
    seen["fenced"] = error_of(lambda: snapshots.save(7, **training.parts, wait=True))
    seen["steps"] = sorted(path.name for path in folder.glob("step-*"))
    failed(out, rank, seen)
    (out / f"{rank}.json").write_text(json.dumps(seen))
    killed(out, rank)


def failed(out: Path, rank: int, seen: dict[str, Any]) -> None:
    """Loads fail after one that has succeeded; what the ranks may do then, and after a good one."""
    folder = out / "failed"
    if rank == 0:
        shutil.copytree(
            folder_of(out / "shared", 5).parent, folder / folder_of(out / "shared", 5).parent.name
        )
    distributed.barrier()
    training, snapshots = Training(4), Snapshots(folder)
    snapshots.load(**training.parts)
    file = folder_of(folder, 5) / "tensors-2.safetensors"
    good = file.read_bytes()
    distributed.barrier()
    if rank == 0:
        damage(file)
    distributed.barrier()
    fail = {"unusable": training.parts, "one misfits": dict(training.parts)}
    if rank == 1:
        fail["one misfits"]["optimizer"] = torch.optim.SGD(training.model.parameters())
    for name, parts in fail.items():
        seen[f"{name}: load"] = error_of(lambda parts=parts: snapshots.load(**parts))
        seen[f"{name}: due"] = error_of(lambda: snapshots.due(6))
        seen[f"{name}: save"] = error_of(lambda: snapshots.save(6, **training.parts, wait=True))
        distributed.barrier()
        if rank == 0:
            file.write_bytes(good)
        distributed.barrier()
    loaded = snapshots.load(**training.parts)
    seen["good again"] = loaded and loaded.step, snapshots.save(6, **training.parts, wait=True)
    plain, alone = Training(5, "plain"), Snapshots(out / "plain")
    parts = plain.parts
    if rank == 1:
        parts["optimizer"] = torch.optim.SGD(plain.model.parameters())
    seen["plain: load"] = error_of(lambda: alone.load(**parts))
    seen["plain: save"] = error_of(lambda: alone.save(9, **plain.parts, wait=True))


def killed(out: Path, rank: int) -> None:
    """Rank 1 dies when its file is written and its record is not; rank 0 is in the next group."""
    training, snapshots = Training(4), Snapshots(out / "shared")
    snapshots.load(**training.parts)
    if rank == 1:
        DirectoryFiles.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    snapshots.save(7, **training.parts)
    if rank == 1:
        snapshots.wait()
    with contextlib.suppress(RuntimeError):
        distributed.barrier()  # ends when rank 1 has died
    os.environ[ENV_MEMBERSHIP] = "1.1.3"
    snapshots.wait()


def main(rank: int, out: Path) -> None:
    logging.disable()
    torch.set_num_threads(1)
    seen: dict[str, Any] = {}
    for number, world in enumerate((4, 3, 2, 1)):
        if rank >= world:
            break
        distributed.init_process_group(
            "gloo", f"file://{out}/meet-{number}", world_size=world, rank=rank
        )
        if world == 4:
            four(out, rank, seen)
        elif world == 2:
            two(out, rank, seen)
        else:
            fewer(out, seen)
        if world != 2:
            distributed.barrier()
        distributed.destroy_process_group()
    (out / f"{rank}.json").write_text(json.dumps(seen))
    os._exit(0)  # without destructors of gloo's threads: see trainer/snapshots/two_ranks.py


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
