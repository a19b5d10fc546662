"""Saves the same snapshot again and again, killed one line of code later each time.

    crash_writer.py BASE OUT

Lines are those of the modules that touch the disk, and of shutil. Each attempt works on a copy of
BASE, OUT/1, OUT/2 and so on; the first that is not killed any more ends the script.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ddpjob_trainer import Snapshots, durable, fence_folders, fences, folder, image, shelf
from trainer.runs import Run

TRACED = {each.__file__ for each in (durable, fence_folders, fences, folder, image, shelf, shutil)}
MEMORY_ONLY = {"__init__", "place", "copy", "take", "_chunks", "_pieces", "raw"}  # of image


def die_after(lines: int) -> None:
    left = lines

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        code = frame.f_code
        in_memory = code.co_filename == image.__file__ and code.co_name in MEMORY_ONLY
        if code.co_filename not in TRACED or in_memory:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def main(base: Path, out: Path) -> None:
    torch.set_num_threads(1)
    run = Run()
    run.train(3)
    lines, killed = 0, True
    while killed:
        lines += 1
        directory = shutil.copytree(base, out / str(lines))
        child = os.fork()
        if child == 0:
            snapshots = Snapshots(directory, keep=2)
            die_after(lines)
            snapshots.save(3, **run.parts(), wait=True)
            sys.settrace(None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status)
    if status != 0:
        sys.exit(f"attempt {lines} failed: {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
