"""A snapshot that several ranks write: whole or absent, and the same as one that was written alone."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ddpjob_trainer import Snapshots
from ddpjob_trainer.snapshots.model import write_plan
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.manifest import TENSORS, UnusableError
from ddpjob_trainer.snapshots.model.write_plan import (
    PartsMissingError,
    WriteAssignment,
    divide,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.tensors.file_digest import FileDigest
from support.forked import Forks
from trainer.runs import Run, assert_same, started
from trainer.snapshots.in_parts import content_of, files_in, publish
from trainer.snapshots.layout import (
    folder_of,
    left_behind,
    manifest_in,
    replace_manifest,
    storage_in,
)

MB = 1 << 20


# --- parts of each rank -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "writers", "expected"),
    [
        ([], 3, [0]),
        ([10], 3, [10]),
        ([63], 3, [63]),
        ([32, 32], 3, [32, 32]),
        ([100, 10, 10, 10, 10, 60], 2, [100, 100]),
        ([40, 40, 40, 40, 40], 4, [80, 40, 40, 40]),
        ([1000], 4, [1000, 0, 0, 0]),
    ],
    ids=["nothing", "small", "nearly_enough", "enough", "balanced", "odd", "one_large"],
)
def test_bytes_are_divided_evenly(sizes: list[int], writers: int, expected: list[int]) -> None:
    named = {f"{number}": size * MB for number, size in enumerate(sizes)}
    division = divide(named, writers)
    loads = [sum(named[name] for name in part) // MB for part in division]
    assert sorted(loads, reverse=True) == expected
    assert sorted(name for part in division for name in part) == sorted(named)
    assert division == divide(dict(reversed(named.items())), writers), "the same on every rank"


def part_of(count: int, *, over: bool = False) -> WriteAssignment:
    return WriteAssignment(0, count, "word", 1, ("",) * count, lambda: over)


def test_the_first_one_waits_for_all_records() -> None:
    asked: list[int] = []

    def read(number: int) -> bytes | None:
        asked.append(number)
        is_done = asked.count(number) > 4 - number  # the last one before the others
        return write_plan.part_report(FileDigest(number, "sha256", "ab"), "") if is_done else None

    assert [*wait_for_parts(part_of(3), read).items()] == [
        ("tensors-1.safetensors", FileDigest(1, "sha256", "ab")),
        ("tensors-2.safetensors", FileDigest(2, "sha256", "ab")),
    ]
    assert wait_for_parts(part_of(1), read) == {}


def test_it_gives_up_when_the_others_have_gone() -> None:
    with pytest.raises(PartsMissingError):
        wait_for_parts(part_of(2, over=True), lambda _: None)


# --- what is written --------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plan, "LEAST_BYTES", 1)


@pytest.fixture
def trained() -> Run:
    run = Run()
    run.train(3)
    return run


def test_both_files_together_are_what_one_alone_would_be(
    tmp_path: Path, small: None, trained: Run
) -> None:
    shelf = storage_in(tmp_path / "parts", 3)
    publish(shelf, 3, trained, shelf.fence(Owner("", "me"), 0))
    Snapshots(tmp_path / "alone").save(3, **trained.parts(), wait=True)
    path = folder_of(tmp_path / "parts", 3)
    assert files_in(path) == [manifest_in(path).name, "tensors-1.safetensors", TENSORS]
    found = [safetensors.torch.load_file(path / name) for name in files_in(path)[1:]]
    alone = safetensors.torch.load_file(folder_of(tmp_path / "alone", 3) / TENSORS)
    assert not {*found[0]} & {*found[1]}
    together = found[0] | found[1]
    assert_same({n: together[n] for n in sorted(together)}, {n: alone[n] for n in sorted(alone)})
    fresh = Run(seed=9)
    loaded = Snapshots(tmp_path / "parts").load(**fresh.parts())
    assert loaded is not None
    assert_same(fresh.weights(), trained.weights())
    assert_same(fresh.optimizer.state_dict(), trained.optimizer.state_dict())


def test_damage_in_any_file_is_found(tmp_path: Path, small: None, trained: Run) -> None:
    shelf = storage_in(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    publish(shelf, 3, trained, fence)
    publish(shelf, 4, trained, fence)
    file = folder_of(tmp_path, 4) / "tensors-1.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UnusableError, match=r"checksum of tensors-1\.safetensors"):
        shelf.check(4)
    loaded = Snapshots(tmp_path).load(**trained.parts())
    assert loaded is not None
    assert loaded.step == 3
    file.unlink()
    with pytest.raises(UnusableError, match=r"tensors-1\.safetensors is missing"):
        shelf.check(4, content=False)


def test_a_manifest_that_names_a_file_elsewhere_is_refused(
    tmp_path: Path, small: None, trained: Run
) -> None:
    shelf = storage_in(tmp_path, 3)
    publish(shelf, 3, trained, shelf.fence(Owner("", "me"), 0))
    folder = folder_of(tmp_path, 3)
    record = json.loads(manifest_in(folder).read_text())
    record["files"]["../step/tensors-1.safetensors"] = record["files"].pop("tensors-1.safetensors")
    replace_manifest(folder, json.dumps(record).encode())
    with pytest.raises(UnusableError, match="not a name of a file in it"):
        shelf.check(3)


def test_a_part_of_a_snapshot_that_was_given_up_disappears(
    tmp_path: Path, small: None, trained: Run
) -> None:
    shelf = storage_in(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    content, part = content_of(3, trained, 1, fence, "0" * 8)
    shelf.write_part(3, content, part)
    assert files_in(folder_of(tmp_path, 3)) == ["part-1.json", "tensors-1.safetensors"]
    assert shelf.all_steps() == []
    fence = shelf.fence(Owner("", "later"), 0)
    publish(shelf, 4, trained, fence)
    assert left_behind(tmp_path) == []
    content, part = content_of(5, trained, 0, fence, "1" * 8, over=lambda: True)
    with pytest.raises(PartsMissingError):
        shelf.commit(5, content, fence, part)
    assert left_behind(tmp_path) == []
    assert shelf.steps() == [4]


def test_a_late_rank_is_informed(
    tmp_path: Path, small: None, trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = storage_in(tmp_path, 3)
    content, part = content_of(3, trained, 1, shelf.fence(Owner("", "me"), 0), "0" * 8)
    put = DirectoryFiles.put

    def given_up(files: DirectoryFiles, name: str, record: bytes) -> None:
        shutil.rmtree(folder_of(tmp_path, 3))
        put(files, name, record)

    monkeypatch.setattr(DirectoryFiles, "put", given_up)
    with pytest.raises(PartsMissingError):
        shelf.write_part(3, content, part)


# --- several processes ------------------------------------------------------------------------------


SCRIPT = Path(__file__).with_name("writing_parts.py")


def ranks(
    forks: Forks, out: Path, kind: str, env: dict[str, str],
    codes: tuple[int, ...] = (0, 0, 0),
) -> list[Any]:  # fmt: skip
    started = [forks.start(SCRIPT, rank, out, kind, env=env) for rank in range(3)]
    assert tuple(rank.wait() for rank in started) == codes
    return [
        json.loads((out / f"{rank}.json").read_text())
        for rank, code in enumerate(codes)
        if not code
    ]


def test_each_rank_writes_its_part_and_what_differs_is_the_first_ones(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "together", python_env)
    assert seen == [{"saved": True, "step": 2, "mean": [0.0] * 4, "same": True}] * 3
    path = folder_of(tmp_path / "shared", 2)
    files = [f"tensors{part}.safetensors" for part in ("-1", "-2", "")]
    assert files_in(path) == [manifest_in(path).name, *files]
    whole = torch.tensor([tensor.nbytes for tensor in Run().model.parameters()]).sum() * 2
    for name in files[:2]:
        part = sum(each.nbytes for each in safetensors.torch.load_file(path / name).values())
        assert 0 < part < whole / 2


def test_a_small_state_is_written_by_one(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "small", python_env)
    assert seen == [{"saved": True, "step": 2, "mean": [0.0] * 4, "same": True}] * 3
    path = folder_of(tmp_path / "shared", 2)
    assert files_in(path) == [manifest_in(path).name, TENSORS]


def test_while_one_rank_writes_all_leave_the_next_one_out(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "busy", python_env)
    assert seen == [{"saved": [True, False, True, False], "skipped": 1}] * 3
    assert storage_in(tmp_path / "shared", 3).steps() == [4, 2]


def test_a_state_that_is_not_the_same_everywhere_is_refused(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, *_ = ranks(forks, tmp_path, "other_model", python_env)
    assert "has other tensors than those of the first one" in first["problem"]
    assert storage_in(tmp_path / "shared", 3).steps() == []


def clears_what_is_left(directory: Path) -> None:
    started(directory).save(9, **Run().parts(), wait=True)
    assert left_behind(directory) == []


def test_a_rank_that_cannot_write_reports_to_the_other_ranks(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, second, third = ranks(forks, tmp_path, "full", python_env)
    assert "Another rank could not write its part: " in first["problem"]
    assert "No space left" in first["problem"]
    assert "it is full" in second["problem"]
    assert third["problem"] == ""
    assert [*(tmp_path / "shared").glob("step-*")] == []
    clears_what_is_left(tmp_path / "shared")


def test_the_first_one_gives_up_while_another_one_writes(
    tmp_path: Path, small: None, trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second rank finds its file deleted: it, too, only leaves out that snapshot."""
    shelf = storage_in(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    content, part = content_of(3, trained, 1, fence, "word")
    first_content, first_part = content_of(3, trained, 0, fence, "word", over=lambda: True)
    is_writing, is_emptied, has_ended = (threading.Event() for _ in range(3))
    put, rmtree = DirectoryFiles.put, shutil.rmtree

    def put_too_late(files: DirectoryFiles, name: str, record: bytes) -> None:
        is_writing.set()
        is_emptied.wait()
        put(files, name, record)

    def remove_slowly(path: Path, **options: Any) -> None:
        if is_writing.is_set():
            for file in path.iterdir():
                file.unlink()
            is_emptied.set()
            has_ended.wait()
        rmtree(path, **options)

    monkeypatch.setattr(DirectoryFiles, "put", put_too_late)
    monkeypatch.setattr(shutil, "rmtree", remove_slowly)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(shelf.write_part, 3, content, part)
        other.add_done_callback(lambda _: has_ended.set())
        is_writing.wait()
        with pytest.raises(PartsMissingError):
            shelf.commit(3, first_content, fence, first_part)
    assert isinstance(other.exception(), PartsMissingError)


def test_a_rank_that_dies_costs_that_snapshot_and_nothing_else(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, _ = ranks(forks, tmp_path, "lost", python_env, codes=(0, 0, 9))
    assert first["skipped"] == 1
    assert storage_in(tmp_path / "shared", 3).steps() == [3, 1]
    clears_what_is_left(tmp_path / "shared")
