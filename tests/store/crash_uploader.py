"""Saves one step after the other to a store, each time killed one moment later.

    crash_uploader.py URI {fence|commit}

A moment is just before and just after each request of the second, and at each piece of the
tensors. What was announced, and what is found afterwards, is printed, one line of JSON for each attempt; the first
that is not killed any more ends the script.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ddpjob_trainer import Snapshots
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.storage import bucket
from ddpjob_trainer.snapshots.storage.bucket import BucketFiles
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage

WIDTH = 400_000
KEEP = 2


def model(value: float) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Linear(9, WIDTH), torch.nn.Linear(3, 3))
    for parameter in made.parameters():
        parameter.data.fill_(value)
    return made


def die_after(moments: int, doing: str) -> None:
    left, is_counting = moments, False
    work = getattr(SnapshotStorage, doing)

    def counted(*arguments: Any) -> Any:
        nonlocal is_counting
        is_counting = True
        result = work(*arguments)
        is_counting = False
        return result

    def moment() -> None:
        nonlocal left
        left -= is_counting
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    ask, upload = BucketFiles._ask, BucketFiles.upload

    def dying_ask(self: BucketFiles, request: Callable[[], Any], *, none: bool = False) -> Any:
        moment()
        answer = ask(self, request, none=none)
        moment()
        return answer

    def dying_upload(self: BucketFiles, name: str, chunks: Iterator[memoryview], size: int) -> None:
        def pieces() -> Iterator[memoryview]:
            for chunk in chunks:
                moment()
                yield chunk

        upload(self, name, pieces(), size)

    setattr(SnapshotStorage, doing, counted)
    BucketFiles._ask = dying_ask  # type: ignore[method-assign]
    BucketFiles.upload = dying_upload  # type: ignore[method-assign]


def in_a_child(work: Callable[[Callable[[object], None]], None]) -> tuple[list[Any], bool]:
    """Return its reports, and whether it was killed. The store's threads do not outlive a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        with os.fdopen(write, "w", buffering=1) as pipe:
            work(lambda value: print(json.dumps(value), file=pipe))
            pipe.flush()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = [json.loads(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        sys.exit(f"failed: {status}")
    return told, os.WIFSIGNALED(status)


def main(uri: str, doing: str) -> None:
    torch.set_num_threads(1)
    bucket.PART_BYTES = 5 << 20
    moments, killed = -1, True
    while killed:
        moments += 1  # with none left to count the first is not killed at all
        step = moments + 1

        def save(tell: Callable[[object], None], step: int = step, moments: int = moments) -> None:
            progress.saved = lambda step, **_: tell(step)
            snapshots = Snapshots(uri, KEEP)
            snapshots.load(model=model(0))
            if moments:
                die_after(moments, doing)
            snapshots.save(step, model=model(step), wait=True)

        def load(tell: Callable[[object], None]) -> None:
            found = model(0)
            loaded = Snapshots(uri).load(model=found)
            assert loaded is not None
            whole = all(bool((each == loaded.step).all()) for each in found.parameters())
            tell([loaded.step, whole])

        announced, killed = in_a_child(save)
        [(found, whole)], _ = in_a_child(load)
        sys.stdout.write(f"{json.dumps([step, killed, announced, found, whole])}\n")
        sys.stdout.flush()
        killed = killed or not moments


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
