"""Runs in a mount namespace of its own: fills a tmpfs of 1 MiB with a snapshot that is too large.

    full_disk.py DIRECTORY

There are two of them below the directory, for a large tensor and for a large text. Prints what
happened in each as JSON, because the file system ends with the namespace.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run

LARGE = {"tensor": torch.zeros(2 << 20, dtype=torch.uint8), "text": "x" * (2 << 20)}


def fill(directory: Path, large: Any) -> dict[str, Any]:
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


if __name__ == "__main__":
    below = Path(sys.argv[1])
    sys.stdout.write(json.dumps({kind: fill(below / kind, LARGE[kind]) for kind in LARGE}))
