"""Chunks of tensors: the rank that writes each, the bytes that a rank reads, and bad manifests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model import chunks, manifest
from ddpjob_trainer.snapshots.model.chunks import Chunk, ChunkedTensor, fault_in, read_chunks, whole
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.sharded import block_digests, reading
from ddpjob_trainer.snapshots.sharded.block_digests import BlockDigests
from ddpjob_trainer.snapshots.sharded.reading import ShardedReader, Target
from ddpjob_trainer.snapshots.sharded.write_plan import HeldTensor, plan_write
from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot
from ddpjob_trainer.tensors.safetensors_writer import CHECKSUM, hasher

BLOCK = 64  # bytes; small, so that tensors of a test have many


@pytest.mark.parametrize(
    ("shape", "boxes", "fault"),
    [
        ((4, 3), [((0, 0), (2, 3)), ((2, 0), (2, 3))], ""),
        ((4, 4), [((0, 0), (4, 2)), ((0, 2), (2, 2)), ((2, 2), (2, 2))], ""),
        ((), [((), ())], ""),
        ((0, 3), [], ""),
        ((4, 3), [((0, 0), (2, 3))], "its chunks hold 6 of 12 elements"),
        ((4, 3), [((0, 0), (3, 3)), ((2, 0), (1, 3))], "at [0, 0] and [2, 0] overlap"),
        ((4, 3), [((3, 0), (2, 3))], "its chunk at [3, 0] lies outside of its shape [4, 3]"),
        ((4, 3), [((0,), (4,))], "lies outside"),
        ((4, 3), [], "hold 0 of 12"),
    ],
)
def test_chunks_are_a_whole_tensor_or_not(
    shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], fault: str
) -> None:
    found = fault_in(shape, [Chunk(*box) for box in boxes])
    assert fault in found if fault else not found


def test_each_chunk_is_written_once_and_evenly() -> None:
    """Two pairs of ranks hold the same halves of each tensor."""
    halves = [Chunk((0, 0), (2, 3)), Chunk((2, 0), (2, 3))]
    holdings = [
        {name: HeldTensor("F32", (4, 3), halves[rank % 2]) for name in ("a", "b")}
        for rank in range(4)
    ]
    plan = plan_write(holdings)
    assert [sorted(part) for part in plan.parts] == [
        ["a[0:2,0:3]"], ["a[2:4,0:3]"], ["b[0:2,0:3]"], ["b[2:4,0:3]"]
    ]  # fmt: skip
    assert plan.tensors["b"].chunks == {
        halves[0]: "tensors-2.safetensors",
        halves[1]: "tensors-3.safetensors",
    }


def test_what_ranks_hold_must_be_one_model() -> None:
    held = HeldTensor("F32", (4, 3), whole((4, 3)))
    for other in ({"b": held}, {"a": held._replace(shape=(3, 3))}, {"a": held, "b": held}):
        with pytest.raises(SnapshotError, match="hold different tensors, such as a"):
            plan_write([{"a": held}, other])
    with pytest.raises(SnapshotError, match="a cannot be saved: its chunks hold 6 of 12"):
        plan_write([{"a": held._replace(chunk=Chunk((0, 0), (2, 3)))}])


def stored(tensors: dict[str, torch.Tensor], cuts: dict[str, list[Chunk]], monkey: Any) -> Any:
    """A snapshot in memory, of one file, and the bytes that were read from it."""
    for module in (manifest, reading, block_digests):
        monkey.setattr(module, "BLOCK_BYTES", BLOCK)
    pieces = {
        chunks.name_of(name, cut): tensors[name][whole(tensors[name].shape).slices_of(cut)]
        for name, some in cuts.items()
        for cut in some
    }
    content = bytearray(save({name: piece.contiguous() for name, piece in pieces.items()}))
    digests = BlockDigests()
    assert b"".join(digests.passing(iter([memoryview(content)[:99], memoryview(content)[99:]])))
    digest = hasher(CHECKSUM)
    digest.update(content)
    described = {
        name: ChunkedTensor(
            "F32", tuple(tensors[name].shape), dict.fromkeys(some, manifest.TENSORS)
        )
        for name, some in cuts.items()
    }
    entry = {"size": len(content), CHECKSUM: digest.hexdigest(), "blocks": digests.finish()}
    found = {"files": {manifest.TENSORS: entry}, "sharded": chunks.to_json(described)}
    spans: list[tuple[int, int]] = []

    def read(name: str, begin: int, into: memoryview) -> None:
        assert name == manifest.TENSORS
        spans.append((begin, begin + len(into)))
        into[:] = content[begin : begin + len(into)]

    return OpenSnapshot(json.loads(json.dumps(found)), read), content, spans


def boxes(lengths: tuple[int, ...]) -> st.SearchStrategy[Chunk]:
    """Any part of a tensor of this shape."""
    pairs = [st.tuples(st.integers(0, n - 1), st.integers(1, n)) for n in lengths]
    return st.tuples(*pairs).map(
        lambda each: Chunk(
            tuple(begin for begin, _ in each),
            tuple(min(n - b, size) for n, (b, size) in zip(lengths, each, strict=True)),
        )
    )


SHAPE = (5, 4, 11)  # a row of the first dimension is larger than a block
CUTS = [Chunk((0, 0, 0), (2, 4, 11)), Chunk((2, 0, 0), (3, 4, 6)), Chunk((2, 0, 6), (3, 4, 5))]


@given(part=boxes(SHAPE))
def test_any_part_is_read_out_of_any_chunks(part: Chunk) -> None:
    tensor = torch.arange(5 * 4 * 11, dtype=torch.float32).view(SHAPE)
    with pytest.MonkeyPatch.context() as monkey:
        snapshot, _, _ = stored({"a": tensor}, {"a": CUTS}, monkey)
        local = torch.full(part.shape, -1.0)
        ShardedReader(snapshot).fill([("a", Target(local, part))])
    assert torch.equal(local, tensor[whole(SHAPE).slices_of(part)])


def test_only_what_a_rank_holds_is_read_and_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.arange(1024, dtype=torch.float32).view(64, 16)
    cuts = [Chunk((0, 0), (32, 16)), Chunk((32, 0), (32, 16))]
    snapshot, content, spans = stored({"a": tensor}, {"a": cuts}, monkeypatch)
    content[-1] ^= 1
    local = torch.zeros(8, 16)
    ShardedReader(snapshot).fill([("a", Target(local, Chunk((4, 0), (8, 16))))])
    assert torch.equal(local, tensor[4:12])
    header = len(content) - tensor.nbytes
    assert sum(end - begin for begin, end in spans) <= header + local.nbytes + 4 * BLOCK
    with pytest.raises(UnusableError, match=r"the checksum of tensors\.safetensors does not match"):
        ShardedReader(snapshot).fill([("a", Target(local, Chunk((56, 0), (8, 16))))])


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [4, -3]},
        {"shape": "43"},
        {"shape": [5, 3]},
        {"chunks": []},
        {"chunks": [{"offset": [0, 0], "shape": [4, 3]}]},
        {"chunks": [{"offset": [0, 0], "shape": [4, 3], "file": "../secret"}]},
        {"chunks": [{"offset": [0.0, 0], "shape": [4, 3], "file": manifest.TENSORS}]},
        {"dtype": None, "chunks": 3},
    ],
    ids=str,
)
def test_a_senseless_manifest_makes_a_snapshot_unusable(change: dict[str, Any]) -> None:
    entry = {
        "dtype": "F32",
        "shape": [4, 3],
        "chunks": [{"offset": [0, 0], "shape": [4, 3], "file": manifest.TENSORS}],
    }
    files: dict[str, Any] = {manifest.TENSORS: {}}
    assert read_chunks({"files": files, "sharded": {"a": entry}})["a"].shape == (4, 3)
    with pytest.raises(UnusableError, match="its content makes no sense"):
        read_chunks({"files": files, "sharded": {"a": entry | change}})


def test_a_chunk_that_is_not_in_its_file_makes_a_snapshot_unusable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot, _, _ = stored({"a": torch.ones(4, 3)}, {"a": [whole((4, 3))]}, monkeypatch)
    text = re.sub('"F32"', '"F64"', json.dumps(snapshot.manifest))
    foreign = snapshot._replace(manifest=json.loads(text))
    with pytest.raises(UnusableError, match=re.escape("a[0:4,0:3] is not in tensors.safetensors")):
        ShardedReader(foreign).fill([("a", Target(torch.ones(4, 3), whole((4, 3))))])
