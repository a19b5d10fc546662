"""The choice of a storage by its text: a directory or an object store's URI."""

from __future__ import annotations

import re
from pathlib import Path

from ddpjob_protocol.environment import SNAPSHOT_URI
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.storage.base import FileStore
from ddpjob_trainer.snapshots.storage.bucket import connect
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage


def resolve_storage(where: str, keep: int, limit: int | None = None) -> SnapshotStorage:
    """Return the storage, before any read. Raise SnapshotError if the text names none.

    `limit` is that of the directory's volume, in bytes.
    """
    return SnapshotStorage(_files_of(where, limit), keep)


def _files_of(where: str, limit: int | None) -> FileStore:
    if "://" not in where:
        return DirectoryFiles(Path(where).absolute(), limit)
    if where.startswith("file:///"):
        return DirectoryFiles(Path(where.removeprefix("file://")), limit)
    match = re.fullmatch(SNAPSHOT_URI, where)
    if match is None:
        raise SnapshotError(
            f"{where} cannot store snapshots: give a directory, or a bucket with a prefix as in "
            "s3://bucket/jobs/digits (s3, gs or az)"
        )
    scheme, bucket, prefix = match.groups()
    return connect(scheme, bucket, prefix.strip("/"))
