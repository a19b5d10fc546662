"""Which place a text means: a directory, or an object store's URI. `place` says what each can do."""

from __future__ import annotations

import re
from pathlib import Path

from ddpjob_protocol.environment import SNAPSHOT_URI
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.storage.base import Place
from ddpjob_trainer.snapshots.storage.directory import Shelf
from ddpjob_trainer.snapshots.storage.object_store import Bucket
from ddpjob_trainer.snapshots.storage.obstore_client import connect


def find(where: str, keep: int) -> Place:
    """Raises SnapshotError if it means none. Nothing is read yet."""
    if "://" not in where:
        return Shelf(Path(where).absolute(), keep)
    if where.startswith("file:///"):
        return Shelf(Path(where.removeprefix("file://")), keep)
    match = re.fullmatch(SNAPSHOT_URI, where)
    if match is None:
        raise SnapshotError(
            f"{where} is no place for snapshots: give a directory, or a bucket with a prefix as in "
            "s3://bucket/jobs/digits (s3, gs or az)"
        )
    scheme, bucket, prefix = match.groups()
    return Bucket(connect(scheme, bucket, prefix.strip("/")), keep)
