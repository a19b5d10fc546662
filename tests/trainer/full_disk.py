"""Runs in a mount namespace of its own: fills a tmpfs of 1 MiB with a snapshot that is too large.

    full_disk.py DIRECTORY {tensor|text}

Prints what happened as JSON, because the file system ends with the namespace.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run

LARGE = {"tensor": torch.zeros(2 << 20, dtype=torch.uint8), "text": "x" * (2 << 20)}


def main(directory: Path, kind: str) -> None:
    run = Run()
    snapshots = Snapshots(directory)
    snapshots.save(1, **run.parts(), wait=True)
    free = os.statvfs(directory).f_bavail
    message = ""
    try:
        snapshots.save(2, **run.parts(), extra=LARGE[kind], wait=True)
    except SnapshotError as error:
        message = str(error)
    loaded = snapshots.load(**run.parts())
    seen = {
        "message": message,
        "names": sorted(path.name for path in directory.iterdir()),
        "blocks_lost": free - os.statvfs(directory).f_bavail,
        "loaded": loaded and loaded.step,
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
