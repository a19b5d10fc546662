"""Manifests and headers of snapshots that others may write: used as they are, or unusable."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_trainer.snapshots.model import chunks, manifest
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.manifest import SENSELESS, UnusableError
from ddpjob_trainer.tensors.safetensors_reader import read_header
from support.fuzzing import DEEP, fuzz, measured, mutated, mutated_json

FILE = {"size": 5 << 20, "sha256": "ab" * 32, "blocks": ["1", "2", "3"]}
CHUNKS = [{"offset": [0, 0], "shape": [1, 3], "file": "tensors.safetensors"},
          {"offset": [1, 0], "shape": [1, 3], "file": "tensors-1.safetensors"}]  # fmt: skip
MANIFEST: dict[str, Any] = {
    "format": manifest.FORMAT, "version": manifest.VERSION, "step": 7, "fence": 3, "torch": "2.9",
    "writer": Owner("uid", "1.1.1", "ns/job")._asdict(), "code": {"script": "a.py", "sha256": "0"},
    "files": {"tensors.safetensors": FILE, "tensors-1.safetensors": FILE},
    "sharded": {"w": {"dtype": "F32", "shape": [2, 3], "chunks": CHUNKS}},
    "state": {"model": {"dict": []}, "types": {}, "extra": {"tuple": [1, "x"]}},
}  # fmt: skip
raw = mutated(mutated_json(st.just(MANIFEST), 3).map(lambda value: json.dumps(value).encode()))


def read(data: bytes) -> dict[str, Any]:
    """Read a manifest as far as a choice between snapshots needs it; raise UnusableError."""
    found = manifest.parse(data)
    manifest.candidate_of(found)
    manifest.origin_of(found)
    manifest.files_of(found)
    chunks.read_chunks(found)
    return found


@fuzz(300)
@given(raw)
@example(json.dumps({**MANIFEST, "version": DEEP}).encode())
@example(json.dumps({**MANIFEST, "version": "x" * 100_000}).encode())
@example(json.dumps({**MANIFEST, "step": ["x"] * 100_000}).encode())
@example(
    json.dumps({**MANIFEST, "files": {"tensors.safetensors": {"size": -1, "sha256": "0"}}}).encode()
)
@example(b"[" * 100_000)
def test_a_manifest_is_usable_or_has_a_short_reason(data: bytes) -> None:
    try:
        found = measured(lambda: read(data), len(data))
    except UnusableError as error:
        assert len(str(error)) < 2000
        assert str(error).isprintable()
        return
    assert 0 <= found["step"] < 10**12
    for name, file in manifest.files_of(found).items():
        assert "/" not in name
        assert file.size >= 0
    for tensor in chunks.read_chunks(found).values():
        assert {*tensor.chunks.values()} <= {*found["files"]}


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert read(json.dumps(MANIFEST).encode()) == MANIFEST


HEADER = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
    "__metadata__": {"format": "pt"},
}


def tensors(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(32)


@fuzz(300)
@given(mutated(mutated_json(st.just(HEADER)).map(tensors)))
@example((2**63).to_bytes(8, "little") + b"{}")
@example(tensors(DEEP))
def test_the_tensors_of_a_header_fill_its_file_or_it_is_senseless(data: bytes) -> None:
    try:
        begin, specs = measured(lambda: read_header(memoryview(data), len(data)), len(data))
    except SENSELESS:
        return
    assert begin + sum(spec.size for spec in specs) == len(data)
