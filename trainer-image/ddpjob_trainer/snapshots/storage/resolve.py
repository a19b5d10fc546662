"""The choice of a storage by its text: a directory or an object store's URI; see `base`."""

from __future__ import annotations

import re
from pathlib import Path

from ddpjob_protocol.environment import SNAPSHOT_URI
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.storage.base import SnapshotStorage
from ddpjob_trainer.snapshots.storage.directory import DirectoryStorage
from ddpjob_trainer.snapshots.storage.object_store import ObjectStorage
from ddpjob_trainer.snapshots.storage.obstore_client import connect


def resolve_storage(where: str, keep: int, limit: int | None = None) -> SnapshotStorage:
    """Return the storage, before any read. Raise SnapshotError if the text names none.

    `limit` is that of the directory's volume, in bytes.
    """
    if "://" not in where:
        return DirectoryStorage(Path(where).absolute(), keep, limit)
    if where.startswith("file:///"):
        return DirectoryStorage(Path(where.removeprefix("file://")), keep, limit)
    match = re.fullmatch(SNAPSHOT_URI, where)
    if match is None:
        raise SnapshotError(
            f"{where} cannot store snapshots: give a directory, or a bucket with a prefix as in "
            "s3://bucket/jobs/digits (s3, gs or az)"
        )
    scheme, bucket, prefix = match.groups()
    return ObjectStorage(connect(scheme, bucket, prefix.strip("/")), keep)
