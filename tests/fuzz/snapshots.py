"""Targets: manifests and tensors of snapshots that others may write."""

from __future__ import annotations

from ddpjob_trainer.snapshots.model.manifest import SENSELESS, UnusableError
from ddpjob_trainer.tensors.safetensors_reader import read_header
from fuzz.target import Form, Target, to_json
from trainer.snapshots.test_fuzzed_manifests import HEADER, MANIFEST, read, tensors


def read_snapshot(data: bytes) -> None:
    assert 0 <= read(data)["step"] < 10**12


def read_tensors(data: bytes) -> None:
    begin, specs = read_header(memoryview(data), len(data))
    assert begin + sum(spec.size for spec in specs) == len(data)


TARGETS = (
    Target("snapshots", Form.JSON, read_snapshot, to_json(MANIFEST), (UnusableError,)),
    Target("tensors", Form.BYTES, read_tensors, (tensors(HEADER), tensors({})), SENSELESS),
)
