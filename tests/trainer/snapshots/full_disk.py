"""Runs in a mount namespace of its own: fills file systems of 1 MiB with snapshots.

    full_disk.py DIRECTORY

There is one below the directory for each kind. Prints what happened in each as JSON, because the
file systems end with the namespace.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run

KB = 1 << 10
LARGE = {"tensor": torch.zeros(2 << 20, dtype=torch.uint8), "text": "x" * (2 << 20)}


def problem_of(snapshots: Snapshots, step: int, *, size: int, wait: bool = True) -> str:
    """Save, and return the error."""
    extra = torch.zeros(size, dtype=torch.uint8)
    try:
        snapshots.save(step, **Run().parts(), extra=extra, wait=wait)
        snapshots.wait()
    except SnapshotError as error:
        return str(error)
    return ""


def too_large(directory: Path, large: Any) -> dict[str, Any]:
    run = Run()
    snapshots = Snapshots(directory)
    snapshots.save(1, **run.parts(), wait=True)
    free = os.statvfs(directory).f_bavail
    message = ""
    try:
        snapshots.save(2, **run.parts(), extra=large, wait=True)
    except SnapshotError as error:
        message = str(error)
    loaded = snapshots.load(**run.parts())
    return {
        "message": message,
        "names": sorted(path.name for path in directory.iterdir()),
        "blocks_lost": free - os.statvfs(directory).f_bavail,
        "loaded": loaded and loaded.step,
    }


def older_ones_fit(directory: Path) -> dict[str, Any]:
    """Three of them fit, and nine are to be kept; then the rest of the volume belongs to others."""
    snapshots = Snapshots(directory, keep=9)
    problems = [problem_of(snapshots, step, size=300 * KB) for step in range(1, 7)]
    problems += [problem_of(snapshots, 7, size=600 * KB, wait=False)]
    return {"problems": problems, "names": sorted(path.name for path in directory.glob("step-*"))}


def live(directory: Path) -> dict[str, Any]:
    """Save like a Loop."""
    snapshots = Snapshots(directory, keep=9)
    snapshots.serve_loop()
    problem_of(snapshots, 1, size=KB)
    large = torch.zeros(2 << 20, dtype=torch.uint8)
    begun = snapshots.save(2, **Run().parts(), extra=large)
    step = 3
    while not snapshots.save(step, **Run().parts()):  # the large one is still being written
        step += 1
    return {
        "begun": begun,
        "skipped": snapshots.skipped,
        "saved": step,
        "at_the_end": problem_of(snapshots, step + 1, size=2 << 20),
        "names": sorted(path.name for path in directory.glob("step-*")),
    }


if __name__ == "__main__":
    logging.disable()
    below = Path(sys.argv[1])
    sys.stdout.write(
        json.dumps(
            {
                **{kind: too_large(below / kind, LARGE[kind]) for kind in LARGE},
                "older": older_ones_fit(below / "older"),
                "live": live(below / "live"),
            }
        )
    )
