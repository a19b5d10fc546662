"""The files of snapshots in a directory, and ways to change them."""

from __future__ import annotations

import re
from pathlib import Path

from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from ddpjob_trainer.snapshots.storage.stored import manifest_name

PATTERN = "manifest-*.json"


def storage_in(directory: Path, keep: int) -> SnapshotStorage:
    return resolve.resolve_storage(str(directory), keep)


def folder_of(directory: Path, step: int) -> Path:
    """Return the folder of the only snapshot of this step."""
    (found,) = (directory / name_of(step)).iterdir()
    return found


def manifest_in(folder: Path) -> Path:
    (found,) = folder.glob(PATTERN)
    return found


def replace_manifest(folder: Path, content: bytes) -> None:
    """Write another manifest, by the name that its content gives it."""
    manifest_in(folder).unlink()
    (folder / manifest_name(content)).write_bytes(content)


def committed(directory: Path) -> list[int]:
    """Return the steps that have a manifest, whether they count or not."""
    found = (path.parent.parent.name for path in directory.glob(f"step-*/*/{PATTERN}"))
    return sorted({int(name.removeprefix("step-")) for name in found})


def left_behind(directory: Path) -> list[str]:
    """Return what is hidden, and the folders without a manifest."""
    hidden = [path for path in directory.rglob(".*") if path.name[0] == "."]
    begun = [path for path in directory.glob("step-*/*") if not [*path.glob(PATTERN)]]
    empty = [path for path in directory.glob("step-*") if not [*path.iterdir()]]
    return sorted(str(path.relative_to(directory)) for path in {*hidden, *begun, *empty})


def memory(kind: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024
