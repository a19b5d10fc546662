"""Saves the same snapshot again and again, killed at another line of code each time.

    crash_writer.py BASE OUT {each|ends}

Lines are those of the modules that touch the disk, and of shutil. Each attempt works on a copy of
BASE, OUT/1, OUT/2 and so on, by the number of the line; the last one is not killed. Prints the spans of
lines during which the disk stays as it is; `ends` are the first and the last line of each.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ddpjob_trainer.snapshots.model import fencing
from ddpjob_trainer.snapshots.storage import (
    cleanup,
    directory,
    durable,
    fence_files,
    snapshot_storage,
    volume,
)
from ddpjob_trainer.tensors import safetensors_writer
from trainer.runs import Run, started

TRACED = {
    each.__file__
    for each in (
        durable,
        fence_files,
        volume,
        fencing,
        snapshot_storage,
        cleanup,
        safetensors_writer,
        directory,
        shutil,
    )
}
MEMORY_ONLY = {"__init__", "allocate", "copy", "_chunks", "_pieces", "raw"}  # of image


def save(run: Run, folder: Path, at: Callable[[int], object]) -> None:
    """Calls `at` before each line, with its number, and once after the last one."""
    numbers = itertools.count(1)

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        code = frame.f_code
        in_memory = code.co_filename == safetensors_writer.__file__ and code.co_name in MEMORY_ONLY
        if code.co_filename not in TRACED or in_memory:
            return None
        if event == "line":
            at(next(numbers))
        return trace

    snapshots = started(folder, keep=2)
    sys.settrace(trace)
    snapshots.save(3, **run.parts(), wait=True)
    sys.settrace(None)
    at(next(numbers))


def spans(run: Run, folder: Path) -> list[tuple[int, int]]:
    """The first and the last line of each."""
    found: list[tuple[int, int]] = []
    before: list[tuple[Path, bytes]] = []

    def look(line: int) -> None:
        nonlocal before
        paths = sorted(folder.rglob("*"))
        now = [(path, path.read_bytes() if path.is_file() else b"") for path in paths]
        first = found.pop()[0] if now == before else line
        found.append((first, line))
        before = now

    save(run, folder, look)
    return found


def attempt(run: Run, folder: Path, line: int, last: int) -> None:
    """In a process of its own, which is killed before that line."""

    def die(at: int) -> None:
        if at == line < last:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        save(run, folder, die)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    expected = -signal.SIGKILL if line < last else 0
    if os.waitstatus_to_exitcode(status) != expected:
        sys.exit(f"attempt {line} failed: {status}")


def main(base: Path, out: Path, which: str) -> None:
    torch.set_num_threads(1)
    run = Run()
    run.train(3)
    found = spans(run, shutil.copytree(base, out / "0"))
    shutil.rmtree(out / "0")
    last = found[-1][1]
    lines = range(1, last + 1) if which == "each" else sorted({*itertools.chain(*found)})
    for line in lines:
        attempt(run, shutil.copytree(base, out / str(line)), line, last)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
