"""Our files are safetensors files, to the bit, and older ones are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
import xxhash

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.snapshots.storage import durable
from ddpjob_trainer.tensors import safetensors_writer
from ddpjob_trainer.tensors.safetensors_writer import TYPES, SafetensorsBuffer, StagingBuffer
from trainer.runs import Run, assert_same

OF_ALL_TYPES = {
    **{f"of {kind}": torch.tensor([[0, 1, 1]]).to(dtype) for dtype, kind in TYPES.items()},
    "a number": torch.tensor(3.5),
    "nothing": torch.empty(0, 4),
    "turned": torch.arange(12).reshape(3, 4).T,
    "every other": torch.arange(9.0)[::2],
    "conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
    "shared": torch.ones(3).expand(2, 3),
    'odd "name" ü': torch.ones(1),
}


def write(path: Path, memory: StagingBuffer, tensors: dict[str, torch.Tensor]) -> str:
    made = SafetensorsBuffer(tensors)
    made.allocate(memory)
    made.copy([*tensors])
    digest = made.stream_to(lambda chunks: durable.write_all(chunks, path)).digest
    assert path.stat().st_size == made.size
    return digest


def raw(tensor: torch.Tensor) -> list[object]:
    """Bits and shape."""
    flat = tensor.resolve_conj().contiguous().view(-1).view(torch.uint8)
    return [tensor.dtype, tensor.shape, flat]


def test_others_read_what_we_write(tmp_path: Path) -> None:
    digest = write(tmp_path / "file", StagingBuffer(), OF_ALL_TYPES)
    found = safetensors.torch.load_file(tmp_path / "file")
    assert {*found} == {*OF_ALL_TYPES}
    for name, tensor in OF_ALL_TYPES.items():
        assert_same(raw(found[name]), raw(tensor), name)
    assert digest == xxhash.xxh3_128(Path(tmp_path / "file").read_bytes()).hexdigest()


def test_memory_is_used_again(tmp_path: Path) -> None:
    memory, large, small = StagingBuffer(), torch.arange(100.0), torch.arange(50.0)
    write(tmp_path / "1", memory, {"a": large})
    place = memory.allocate(1).data_ptr()
    write(tmp_path / "2", memory, {"a": small, "b": small + 1})
    assert memory.allocate(1).data_ptr() == place
    found = safetensors.torch.load_file(tmp_path / "2")
    assert_same(found, {"a": small, "b": small + 1})


def test_what_changes_after_the_copy_is_not_written(tmp_path: Path) -> None:
    tensor = torch.zeros(4)
    made = SafetensorsBuffer({"a": tensor})
    made.allocate(StagingBuffer())
    made.copy(["a"])
    tensor.fill_(9)
    made.stream_to(lambda chunks: durable.write_all(chunks, tmp_path / "file"))
    assert_same(safetensors.torch.load_file(tmp_path / "file"), {"a": torch.zeros(4)})


def test_too_little_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, tensor = StagingBuffer(), torch.ones(1000)

    def none_left(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty", none_left)
    with pytest.raises(SnapshotError, match="no host memory for a snapshot of 4,000 bytes"):
        SafetensorsBuffer({"a": tensor}).allocate(memory)


def test_without_xxhash_the_checksum_is_another(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, **run.parts(), wait=True)
    monkeypatch.setattr(safetensors_writer, "xxhash", None)
    with pytest.raises(SnapshotError, match="xxh3_128, which needs another package here: pip"):
        Snapshots(tmp_path).load(**run.parts())
    monkeypatch.setattr(safetensors_writer, "CHECKSUM", "sha256")
    snapshots.save(2, **run.parts(), wait=True)
    monkeypatch.undo()
    loaded = Snapshots(tmp_path).load(**run.parts())
    assert loaded is not None
    assert loaded.step == 2
