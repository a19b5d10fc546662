"""Which files count as whole: files of the real writers, cut at every length."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.torch
import torch

from ddpjob_agent.file_sync.disk import integrity
from ddpjob_agent.file_sync.disk.integrity import find_corruption, find_folder_corruption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def model() -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    net(torch.ones(4, 3)).sum().backward()
    return net


def state() -> dict[str, Any]:
    """Everything that scripts put into a snapshot: all kinds of storage, plain and odd objects."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.step()
    kinds = "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 uint16"
    return {
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "tensors": [torch.ones(3).to(getattr(torch, kind)) for kind in kinds.split()],
        "float8": torch.ones(5).to(torch.float8_e4m3fn),
        "plain": {"epoch": 7, "size": torch.Size([1]), "seen": {1, 2}, "of": np.arange(4)},
        "counts": collections.Counter("abc"),
    }


def by_torch(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def without_checksums() -> bytes:
    torch.serialization.set_crc32_options(False)
    try:
        return by_torch(model().state_dict())
    finally:
        torch.serialization.set_crc32_options(True)


def by_numpy() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.arange(10))
    return file.getvalue()


OLD = {"_use_new_zipfile_serialization": False}
WRITERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "torch_save": ("s.pt", lambda: by_torch(state())),
    "torch_save_without_checksums": ("s.pt", without_checksums),
    "safetensors": (
        "s.safetensors",
        lambda: safetensors.torch.save({"a": torch.ones(3), "b": torch.ones(2)}, {"step": "7"}),
    ),
    "safetensors_of_nothing": ("s.safetensors", lambda: safetensors.torch.save({})),
    "pickle": ("s.pkl", lambda: pickle.dumps([state()["plain"], collections.Counter("ab")])),
    "pickle_2": ("s.pkl", lambda: pickle.dumps(list(range(300)), protocol=2)),
    "npz": ("s.npz", by_numpy),
}


def judge(content: bytes, name: str = "s.pt") -> str:
    return find_corruption(io.BytesIO(content), len(content), name)


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    name, write = WRITERS[request.param]
    return name, write()


def test_what_a_writer_finished_is_whole(written: tuple[str, bytes]) -> None:
    name, content = written
    assert judge(content, name) == ""


def test_what_torch_wrote_before_1_6_counts_like_an_unknown_format() -> None:
    for content in (by_torch(state(), **OLD), by_torch(model(), **OLD)):
        assert (judge(content), judge(content[: len(content) // 2])) == ("", "")


def lengths(size: int) -> Iterator[int]:
    """All near both ends; between them enough to fall into every part."""
    yield from range(min(size, 150))
    yield from range(150, max(150, size - 400), max(1, size // 150))
    yield from range(max(0, size - 400), size)


def test_what_is_cut_is_damaged_at_whatever_length(written: tuple[str, bytes]) -> None:
    name, content = written
    missed = [length for length in lengths(len(content)) if not judge(content[:length], name)]
    assert missed == []


@pytest.mark.parametrize("where", [0.3, 0.6])
def test_a_hole_in_the_middle_is_found_by_checksums(where: float) -> None:
    """A machine that lost its power leaves the end of a file without the bytes before it."""
    content = bytearray(by_torch({"a": torch.randn(5000)}))
    at = int(len(content) * where)
    content[at : at + 4096] = bytes(4096)
    assert "is damaged" in judge(bytes(content))


def test_an_archive_within_a_cut_one_is_not_taken_for_it() -> None:
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("inner.npz", by_numpy())
        archive.writestr("more", b"x" * 1000)
    content = outer.getvalue()
    inner_end = content.index(b"more") - integrity.ENTRY_BYTES
    assert "another archive" in judge(content[:inner_end])


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"", "it is empty"),
        (b"epoch 7\n", ""),
        (b"\x00" * 100, ""),
        (b"\x93NUMPY" + b"\x00" * 9, ""),
        (b'{"cfg": {"lr": 1}}', ""),
    ],
    ids=["nothing", "text", "numbers", "npy", "json"],
)
def test_any_other_file_is_whole_unless_it_is_empty(content: bytes, damage: str) -> None:
    assert judge(content, "state.bin") == damage


@pytest.mark.parametrize(
    "name",
    [
        "_SUCCESS", "_COMMITTED_1", "DONE", "done", "step-5.done", "commit_success", "Complete",
        "checkpoint_complete_7", "rank0.lock", "stderr.log", "__init__.py",
    ],
)  # fmt: skip
def test_an_empty_marker_is_whole(name: str) -> None:
    assert judge(b"", f"ckpt/{name}") == ""


@pytest.mark.parametrize(
    "name",
    [
        "s.pt", "_SUCCESS.pt", "done.bin", "optimizer", "latest", "_model", "config.json",
        "model.safetensors", "checkpoint.7", "undone", "latest_checkpointed_iteration.txt",
    ],
)  # fmt: skip
def test_an_empty_file_of_any_other_name_is_torn(name: str) -> None:
    """A torch.save that is killed before its first byte leaves an empty file."""
    assert judge(b"", f"ckpt/{name}") == "it is empty"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("what a pickle names was called",))


def test_nothing_of_a_pickle_is_executed() -> None:
    assert judge(pickle.dumps({"a": Bomb()}), "s.pkl") == ""
    assert judge(by_torch({"a": Bomb()}, **OLD)) == ""


def test_a_large_file_is_judged_by_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    content = by_torch({"a": torch.randn(5000)})
    monkeypatch.setattr(integrity, "DEEP_BYTES", len(content) - 1)
    assert judge(content) == ""
    assert judge(content[:-1]) != ""
    large = pickle.dumps(b"x" * len(content))
    assert (judge(large), judge(large[:-1])) == ("", "its last pickle is cut short")


TRAINERS = (
    "config.json",
    "model.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "rng_state.pth",
)


@pytest.mark.parametrize(
    ("names", "whole"),
    [
        pytest.param([f"out/checkpoint-20/{name}" for name in TRAINERS], False, id="no_end"),
        pytest.param(["out/checkpoint-20/rng_state_3.pth"], False, id="of_another_rank"),
        pytest.param(
            [f"checkpoint-20/{name}" for name in (*TRAINERS, "trainer_state.json")],
            True,
            id="to_the_end",
        ),
        pytest.param(["checkpoint-20/model.pt"], True, id="of_another_writer"),
        pytest.param(["run/optimizer.pt"], True, id="of_another_name"),
        pytest.param(["checkpoint-20/model.safetensors"], True, id="model_only"),
    ],
)
def test_directories_of_the_trainer_are_whole_with_their_last_file(
    names: list[str], whole: bool
) -> None:
    assert bool(find_folder_corruption(names)) is not whole


def test_the_last_file_of_the_trainer_is_whole_too() -> None:
    content = b'{"global_step": 20, "log_history": []}'
    name = "checkpoint-20/trainer_state.json"
    for size in range(1, len(content) + 1):
        damage = find_corruption(io.BytesIO(content[:size]), size, name)
        assert bool(damage) is (size < len(content))
