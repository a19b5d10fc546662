"""The settings of a job's snapshots, from the script or from the job's environment variables."""

from __future__ import annotations

import os

from ddpjob_protocol.environment import (
    ENV_SNAPSHOT_BYTES,
    ENV_SNAPSHOT_DIR,
    ENV_SNAPSHOT_EVERY,
    ENV_SNAPSHOT_KEEP,
    ENV_SNAPSHOT_URI,
)
from ddpjob_trainer.errors import SnapshotError

VARIABLES = (ENV_SNAPSHOT_URI, ENV_SNAPSHOT_DIR)  # the first variable that is set counts
KEEP = 3  # snapshots, if neither the caller nor the job sets a number
EVERY = 100  # steps between two snapshots, if the job sets no number


def where(directory: str | os.PathLike[str] | None) -> str:
    """Return the directory or URI, by default the job's. Raise SnapshotError if there is none."""
    chosen = directory or next(filter(None, map(os.environ.get, VARIABLES)), None)
    if not chosen:
        raise SnapshotError(
            "There is no directory for snapshots. Give the job a spec.snapshot, set "
            f"{ENV_SNAPSHOT_DIR}, or call Snapshots(directory)."
        )
    return os.fspath(chosen)


def keep(number: int | None) -> int:
    """Return the number of snapshots to keep, by default the job's. Raise SnapshotError."""
    found = _count(ENV_SNAPSHOT_KEEP, KEEP) if number is None else number
    if found < 1:
        raise SnapshotError(f"keep is {found}: at least one snapshot must stay")
    return found


def every() -> int:
    """Return the number of steps between two snapshots. Raise SnapshotError."""
    return _count(ENV_SNAPSHOT_EVERY, EVERY)


def limit(directory: str | os.PathLike[str] | None) -> int | None:
    """Return the limit of the volume of the job's directory in bytes. Raise SnapshotError."""
    is_jobs_own = directory is None and not os.environ.get(ENV_SNAPSHOT_URI)
    return (
        _count(ENV_SNAPSHOT_BYTES, 0) if is_jobs_own and ENV_SNAPSHOT_BYTES in os.environ else None
    )


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SnapshotError(f"{variable} is {text!r}: a whole number from 1 on is needed")
    return int(text)
