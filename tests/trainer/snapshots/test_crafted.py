"""A crafted or half-valid snapshot is ignored with its reason: no other error, no large allocation.

Each has right checksums, so that only its content is senseless.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore.store
import pytest

from ddpjob_trainer.collectives import StorageGroup
from ddpjob_trainer.snapshots import listing
from ddpjob_trainer.snapshots.loading import SnapshotLoader
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.flat_state import FlatState
from ddpjob_trainer.snapshots.model.manifest import TENSORS, name_of
from ddpjob_trainer.snapshots.model.staging import StagedState
from ddpjob_trainer.snapshots.storage.base import FileStore
from ddpjob_trainer.snapshots.storage.bucket import BucketFiles
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from ddpjob_trainer.snapshots.storage.stored import folder_of, manifest_name
from ddpjob_trainer.tensors import training_state
from trainer.runs import Run
from trainer.snapshots import layout

ME = Owner("", "me")
Manifest = dict[str, Any]
DEEP = "nested deeply"


def files(**entry: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: {**m, "files": {TENSORS: {**m["files"][TENSORS], **entry}}}


def state(node: Any) -> Callable[[Manifest], Manifest]:
    return lambda m: {**m, "state": {**m["state"], "extra": node}}


MANIFESTS: dict[str, Callable[[Manifest], Any]] = {
    "a list": lambda _: [],
    "another format": lambda m: {**m, "format": None},
    "no step": lambda m: {name: m[name] for name in m if name != "step"},
    "step is text": lambda m: {**m, "step": "7"},
    "step is huge": lambda m: {**m, "step": 10**400},
    "step is a boolean": lambda m: {**m, "step": True},
    "fence is null": lambda m: {**m, "fence": None},
    "fence is negative": lambda m: {**m, "fence": -1},
    "no writer": lambda m: {name: m[name] for name in m if name != "writer"},
    "writer is a list": lambda m: {**m, "writer": ["job", "1.1.1"]},
    "writer has a number": lambda m: {**m, "writer": {"job": "", "membership": 1}},
    "membership has no order": lambda m: {**m, "writer": {"job": "a", "membership": "first"}},
    "name of the job is a list": lambda m: {**m, "writer": {**m["writer"], "name": []}},
    "no files": lambda m: {**m, "files": {}},
    "files are a list": lambda m: {**m, "files": [TENSORS]},
    "size is a float": files(size=1e300),
    "size is missing": lambda m: {**m, "files": {TENSORS: {"sha256": "0"}}},
    "two checksums": files(sha256="0", xxh3_128="0"),
    "a path out of the folder": lambda m: {**m, "files": {"../x.safetensors": m["files"][TENSORS]}},
    "state is a list": lambda m: {**m, "state": [1]},
    "no model": lambda m: {**m, "state": {"types": {}}},
    "nested deeply": state(DEEP),
    "an unknown tensor": state({"tensor": "none"}),
    "a tensor named by a list": state({"tensor": []}),
    "a float of 400 digits": state({"float": 10**400}),
    "a key that is a list": state({"dict": [[[], 1]]}),
    "pairs of three": state({"dict": [[1, 2, 3]]}),
    "an unknown kind": state({"object": 1}),
    "two kinds": state({"tuple": [], "dict": []}),
    "a count of text": state({"counter": 5}),
}


def header(text: object, size: int | None = None) -> Callable[[bytes], bytes]:
    raw = text if isinstance(text, bytes) else json.dumps(text).encode()
    return lambda _: (len(raw) if size is None else size).to_bytes(8, "little") + raw


def tensor(**entry: Any) -> Callable[[bytes], bytes]:
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}
    return lambda raw: header({"model.0.weight": whole})(raw) + bytes(8)


HEADERS: dict[str, Callable[[bytes], bytes]] = {
    "an empty file": lambda _: b"",
    "a file of three bytes": lambda _: b"abc",
    "a header of 2**61 bytes": header({}, 2**61),
    "a header of 2**64 - 1 bytes": header({}, 2**64 - 1),
    "a header longer than the file": header({}, 1000),
    "a header that is not JSON": header(b"{"),
    "a header that is a list": header([1]),
    "a header nested deeply": header(b"[" * 100_000),
    "an entry that is text": header({"model.0.weight": "F32"}),
    "an unknown type": tensor(dtype="F7"),
    "a negative shape": tensor(shape=[-1, -2]),
    "a shape of floats": tensor(shape=[2.0]),
    "a shape of 2**64 elements": tensor(shape=[2**32, 2**32], data_offsets=[0, 0]),
    "a shape of 2**60 elements": tensor(shape=[2**60], data_offsets=[0, 2**62]),
    "offsets of text": tensor(data_offsets=["0", "8"]),
    "offsets of another tensor": tensor(data_offsets=[8, 16]),
    "no offsets": tensor(data_offsets=None),
    "bytes that belong to no tensor": lambda raw: raw + bytes(8),
}


def crafted(good: Path) -> dict[str, tuple[bytes, bytes]]:
    """Return the manifest and the tensors of each, all of step 0."""
    manifest, tensors = (
        json.loads(layout.manifest_in(good).read_bytes()),
        (good / TENSORS).read_bytes(),
    )
    found = {"[[[[": (b"[" * 100_000, tensors)}
    nested = b'{"tuple":[' * 490 + b"1" + b"]}" * 490
    for name, change in MANIFESTS.items():
        raw = json.dumps(change(manifest)).encode()
        found[name] = raw.replace(f'"{DEEP}"'.encode(), nested), tensors
    for name, spoil in HEADERS.items():
        data = spoil(tensors)
        entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        found[name] = json.dumps({**manifest, "files": {TENSORS: entry}}).encode(), data
    return found


def of_step(raw: bytes, step: int) -> bytes:
    """Return the manifest for another step, if it is of step 1 at all."""
    return re.sub(rb'"step": 1,', f'"step": {step},'.encode(), raw)


def in_directory(folder: Path) -> FileStore:
    return DirectoryFiles(folder)


def in_bucket(_: Path) -> FileStore:
    return BucketFiles(obstore.store.MemoryStore(), "s3://bucket/prefix")


def add(files: FileStore, step: int, content: bytes, tensors: bytes) -> str:
    """Add a snapshot behind the first fence, and return the name of its manifest."""
    folder = folder_of(step, 1, f"{step:08x}")
    files.upload(f"{folder}/{TENSORS}", iter([memoryview(tensors)]), len(tensors))
    name = f"{folder}/{manifest_name(content)}"
    files.put(name, content)
    return name


def good_in(storage: SnapshotStorage) -> None:
    run = Run()
    staged = StagedState(FlatState(1, training_state.collect(run.model, None)))
    storage.commit(1, staged, storage.fence(ME, 0))


@pytest.mark.parametrize("make", [in_directory, in_bucket])
def test_a_crafted_snapshot_is_ignored_with_its_reason(
    tmp_path: Path, make: Callable[[Path], FileStore], caplog: pytest.LogCaptureFixture
) -> None:
    good_in(SnapshotStorage(DirectoryFiles(tmp_path / "good"), 9))
    for name, (manifest, tensors) in crafted(layout.folder_of(tmp_path / "good", 1)).items():
        storage = SnapshotStorage(make(tmp_path / name.replace("/", "-")), 9)
        good_in(storage)
        add(storage.files, 2, of_step(manifest, 2), tensors)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ddpjob"):
            loader = SnapshotLoader(storage, 0, StorageGroup((0,), (0,), 1), ME)
            found = loader.load_agreed(lambda _: None, lambda *_: False)
        assert found is not None, name
        assert found[0] == 1, name
        assert name_of(2) in caplog.text, name
        assert [entry.step for entry in listing.read_entries(storage)] == [2, 1], name
        storage.prune()


def test_what_is_no_file_and_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    """A named pipe would block, and a sparse file of 2**40 bytes would fill the memory."""
    folder = tmp_path / "snapshots"
    storage = SnapshotStorage(DirectoryFiles(folder), 9)
    good_in(storage)
    pipe, large, inner = (folder / add(storage.files, step, b"{}", b"") for step in (2, 3, 4))
    for path in (pipe, inner):
        path.unlink()
    os.mkfifo(pipe)
    os.truncate(large, 2**40)
    inner.mkdir()
    found = [(each.step, each.reason) for each in listing.read_entries(storage)]
    assert [step for step, _ in found] == [3, 1]
    assert "1,099,511,627,776 bytes, too many to be read" in found[0][1]
    (large.parent / TENSORS).unlink()
    os.mkfifo(large.parent / TENSORS)
    assert storage.complete() == [1]
