"""One training process that restores a state: prints what each time took, as JSON lines.

    restoring.py WAY MEGABYTES TIMES FOLDER
    restoring.py "ddpjob, from a peer" MEGABYTES TIMES FOLDER RANK

The state is saved into the folder once, by the same means, and restored into a training that has
another one: `restore`, in seconds, from the call until model and optimizer have it. What lies in
memory is what FOLDER is in: where it is on a disk, the disk is what it is read from.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads.state_of import Training, synced

RANKS = 2
CHUNK_BYTES = 8 << 20

Restore = Callable[[Training], None]


def ours(saved: Training, folder: Path) -> Restore:
    from ddpjob_trainer import Snapshots  # noqa: PLC0415 - not where DLRover is

    snapshots = Snapshots(folder, keep=1)
    snapshots.save(1, model=saved.model, optimizer=saved.optimizer, wait=True)

    def restore(training: Training) -> None:
        assert Snapshots(folder).load(model=training.model, optimizer=training.optimizer)

    return restore


def torch_load(saved: Training, folder: Path) -> Restore:
    path = folder / "state.pt"
    torch.save(saved.state(), path)
    return lambda training: training.take(torch.load(path, weights_only=True))


def dcp(saved: Training, folder: Path) -> Restore:
    checkpoint.save(saved.state(), checkpoint_id=folder / "state")

    def restore(training: Training) -> None:
        state = training.state()
        checkpoint.load(state, checkpoint_id=folder / "state")
        training.take(state)

    return restore


def flash(saved: Training, folder: Path) -> Restore:
    from dlrover.trainer.torch.flash_checkpoint import checkpointer, ddp  # noqa: PLC0415 - not in this environment

    flash = ddp.DdpCheckpointer(str(folder))
    flash.save_checkpoint(1, saved.state(), storage_type=checkpointer.StorageType.MEMORY)

    def restore(training: Training) -> None:
        state = flash.load_checkpoint()
        assert state, "it has nothing in memory"
        training.take(state)

    return restore


WAYS = {
    "ddpjob": ours,
    "torch.load": torch_load,
    "DCP load": dcp,
    "DLRover flash checkpoint": flash,
}
PEER = "ddpjob, from a peer"


def cold(folder: Path) -> None:
    """Drop the folder's content from the page cache, unless it is only there."""
    synced(folder)
    for each in folder.rglob("*"):
        if each.is_file():
            descriptor = os.open(each, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(restore: Restore, megabytes: int, folder: Path) -> float:
    training = Training(megabytes)
    cold(folder)
    begun = time.perf_counter()
    restore(training)
    return time.perf_counter() - begun


def roofs(megabytes: int, times: int, folder: Path) -> Iterator[dict[str, float]]:
    """Measure the time to read this size, to copy it, and to send it over a connection."""
    source = torch.ones(megabytes * 1_000_000, dtype=torch.uint8)
    target = torch.zeros_like(source)
    content, into = memoryview(source.numpy().data), memoryview(target.numpy().data)
    (folder / "roof").write_bytes(content)
    for _ in range(times):
        cold(folder)
        begun = time.perf_counter()
        with (folder / "roof").open("rb", buffering=0) as file:
            _fill(into, file.readinto)
        read = time.perf_counter() - begun
        begun = time.perf_counter()
        target.copy_(source)
        yield {
            "read": read,
            "memcpy": time.perf_counter() - begun,
            "socket": _sent(content, into),
        }


def _sent(content: memoryview, into: memoryview) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        giver = socket.create_connection(server.getsockname())
        taker, _ = server.accept()
    with giver, taker:
        begun = time.perf_counter()
        giving = threading.Thread(target=giver.sendall, args=(content,))
        giving.start()
        _fill(into, taker.recv_into)
        took = time.perf_counter() - begun
        giving.join()
    return took


def _fill(rest: memoryview, take: Callable[[memoryview], int | None]) -> None:
    while rest:
        count = take(rest[:CHUNK_BYTES])
        assert count
        rest = rest[count:]


def from_a_peer(megabytes: int, times: int, folder: Path, rank: int) -> Iterator[float]:
    """Rank 0 has the snapshot in a directory of its own; how long rank 1 takes to have the state."""
    from ddpjob_trainer import Snapshots  # noqa: PLC0415 - not where DLRover is

    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    own = folder / str(rank)
    if rank == 0:
        saved = Training(megabytes)
        alone = Snapshots(own, keep=1)
        alone.save(1, model=saved.model, optimizer=saved.optimizer, wait=True)
        del saved
    snapshots = Snapshots(own)
    for number in range(1 + times):  # the first one imports what it needs, and connects
        training = Training(megabytes)
        distributed.barrier()
        begun = time.perf_counter()
        assert snapshots.load(model=training.model, optimizer=training.optimizer)
        took = time.perf_counter() - begun
        distributed.barrier()
        if number > 0:
            yield took


def main(way: str, megabytes: int, times: int, folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    if way == "roofs":
        for roof in roofs(megabytes, times, folder):
            print(json.dumps(roof), flush=True)
        return
    if way == PEER:
        for took in from_a_peer(megabytes, times, folder, rank):
            if rank > 0:
                print(json.dumps({"restore": took}), flush=True)
        return
    if way.startswith("DCP"):
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    restore = WAYS[way](Training(megabytes), folder)
    timed(restore, megabytes, folder)  # imports what it needs
    for _ in range(times):
        print(json.dumps({"restore": timed(restore, megabytes, folder)}), flush=True)


if __name__ == "__main__":
    given_rank = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), given_rank)
