"""The objects below a URI, and ways to damage them."""

from __future__ import annotations

import obstore
from obstore.store import S3Store

from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.snapshots.storage import resolve
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from trainer.runs import Run


def store(uri: str) -> S3Store:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return S3Store(bucket, prefix=prefix, client_options={"allow_http": True})


def names(uri: str) -> list[str]:
    return sorted(each["path"] for some in obstore.list(store(uri)) for each in some)


def parts_of(uri: str, step: int) -> list[str]:
    """Names of the objects of this step, the manifest first."""
    return [name for name in names(uri) if name.startswith(f"{name_of(step)}/")]


def content(uri: str, name: str) -> bytes:
    return bytes(obstore.get(store(uri), name).bytes())


def replace(uri: str, name: str, data: bytes) -> None:
    obstore.put(store(uri), name, data)


def delete(uri: str, name: str) -> None:
    obstore.delete(store(uri), name)


def bucket(uri: str, keep: int = 9) -> SnapshotStorage:
    return resolve.resolve_storage(uri, keep)


def after(steps: int, width: int = 4) -> Run:
    run = Run(width=width)
    run.train(steps)
    return run
