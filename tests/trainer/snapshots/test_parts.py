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
from ddpjob_trainer.snapshots.model.manifest import TENSORS, UnusableError, name_of
from ddpjob_trainer.snapshots.model.write_plan import (
    PartsMissingError,
    WriteAssignment,
    divide,
    wait_for_parts,
)
from ddpjob_trainer.snapshots.storage import snapshot_dir
from ddpjob_trainer.snapshots.storage.directory import DirectoryStorage
from ddpjob_trainer.tensors.file_digest import FileDigest
from support.forked import COLD, Forks
from trainer.runs import Run, assert_same, started
from trainer.snapshots.in_parts import content_of, files_in, publish

MB = 1 << 20
WHOLE = ["COMMIT", "manifest.json", "tensors.safetensors"]


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
    shelf = DirectoryStorage(tmp_path / "parts", 3)
    publish(shelf, 3, trained, shelf.fence(Owner("", "me"), 0))
    Snapshots(tmp_path / "alone").save(3, **trained.parts(), wait=True)
    path = shelf.path(3)
    assert files_in(path) == [*WHOLE[:2], "tensors-1.safetensors", WHOLE[2]]
    found = [safetensors.torch.load_file(path / name) for name in files_in(path)[2:]]
    alone = safetensors.torch.load_file(tmp_path / "alone" / path.name / TENSORS)
    assert not {*found[0]} & {*found[1]}
    together = found[0] | found[1]
    assert_same({n: together[n] for n in sorted(together)}, {n: alone[n] for n in sorted(alone)})
    fresh = Run(seed=9)
    loaded = Snapshots(tmp_path / "parts").load(**fresh.parts())
    assert loaded is not None
    assert_same(fresh.weights(), trained.weights())
    assert_same(fresh.optimizer.state_dict(), trained.optimizer.state_dict())


def test_damage_in_any_file_is_found(tmp_path: Path, small: None, trained: Run) -> None:
    shelf = DirectoryStorage(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    publish(shelf, 3, trained, fence)
    publish(shelf, 4, trained, fence)
    file = shelf.path(4) / "tensors-1.safetensors"
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
    shelf = DirectoryStorage(tmp_path, 3)
    publish(shelf, 3, trained, shelf.fence(Owner("", "me"), 0))
    record = json.loads((shelf.path(3) / "manifest.json").read_text())
    record["files"]["../step/tensors-1.safetensors"] = record["files"].pop("tensors-1.safetensors")
    raw = json.dumps(record).encode()
    (shelf.path(3) / "manifest.json").write_bytes(raw)
    (shelf.path(3) / "COMMIT").write_bytes(snapshot_dir._commit_record(raw))
    with pytest.raises(UnusableError, match="no name of a file in it"):
        shelf.check(3)


def test_a_part_of_a_snapshot_that_was_given_up_disappears(
    tmp_path: Path, small: None, trained: Run
) -> None:
    shelf = DirectoryStorage(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    content, part = content_of(3, trained, 1, fence, "0" * 8)
    shelf.write_part(3, content, part)
    [aside] = tmp_path.glob(".step-*")
    assert files_in(aside) == ["part-1.json", "tensors-1.safetensors"]
    publish(shelf, 4, trained, fence)
    assert not aside.exists()
    content, part = content_of(5, trained, 0, fence, "1" * 8, over=lambda: True)
    with pytest.raises(PartsMissingError):
        shelf.commit(5, content, fence, part)
    assert [*tmp_path.glob(".step-*")] == []
    assert shelf.steps() == [4]


def test_a_late_rank_is_informed(
    tmp_path: Path, small: None, trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = DirectoryStorage(tmp_path, 3)
    content, part = content_of(3, trained, 1, shelf.fence(Owner("", "me"), 0), "0" * 8)
    tell = snapshot_dir.write_part_record

    def given_up(path: Path, number: int, record: bytes) -> None:
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
        tell(path, number, record)

    monkeypatch.setattr(snapshot_dir, "write_part_record", given_up)
    with pytest.raises(PartsMissingError):
        shelf.write_part(3, content, part)


# --- several processes ------------------------------------------------------------------------------


SCRIPT = Path(__file__).with_name("writing_parts.py")


def ranks(
    forks: Forks, out: Path, kind: str, env: dict[str, str],
    codes: tuple[int, ...] = (0, 0, 0), *, executed: bool = COLD,
) -> list[Any]:  # fmt: skip
    started = [
        forks.start(SCRIPT, rank, out, kind, env=env, executed=executed) for rank in range(3)
    ]
    assert tuple(rank.wait() for rank in started) == codes
    return [
        json.loads((out / f"{rank}.json").read_text())
        for rank, code in enumerate(codes)
        if not code
    ]


def test_each_rank_writes_its_part_and_what_differs_is_the_first_ones(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "together", python_env, executed=True)
    assert seen == [{"saved": True, "step": 2, "mean": [0.0] * 4, "same": True}] * 3
    path = tmp_path / "shared" / name_of(2)
    files = [f"tensors{part}.safetensors" for part in ("-1", "-2", "")]
    assert files_in(path) == ["COMMIT", "manifest.json", *files]
    whole = torch.tensor([tensor.nbytes for tensor in Run().model.parameters()]).sum() * 2
    for name in files[:2]:
        part = sum(each.nbytes for each in safetensors.torch.load_file(path / name).values())
        assert 0 < part < whole / 2


def test_a_small_state_is_written_by_one(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "small", python_env)
    assert seen == [{"saved": True, "step": 2, "mean": [0.0] * 4, "same": True}] * 3
    assert files_in(tmp_path / "shared" / name_of(2)) == WHOLE


def test_while_one_rank_writes_all_leave_the_next_one_out(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    seen = ranks(forks, tmp_path, "busy", python_env)
    assert seen == [{"saved": [True, False, True, False], "skipped": 1}] * 3
    assert DirectoryStorage(tmp_path / "shared", 3).steps() == [4, 2]


def test_a_state_that_is_not_the_same_everywhere_is_refused(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    first, *_ = ranks(forks, tmp_path, "other_model", python_env)
    assert "has other tensors than those of the first one" in first["problem"]
    assert DirectoryStorage(tmp_path / "shared", 3).steps() == []


def clears_what_is_left(directory: Path) -> None:
    started(directory).save(9, **Run().parts(), wait=True)
    assert [*directory.glob(".step-*")] == []


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
    shelf = DirectoryStorage(tmp_path, 3)
    fence = shelf.fence(Owner("", "me"), 0)
    content, part = content_of(3, trained, 1, fence, "word")
    first_content, first_part = content_of(3, trained, 0, fence, "word", over=lambda: True)
    is_writing, is_emptied, has_ended = (threading.Event() for _ in range(3))
    tell, rmtree = snapshot_dir.write_part_record, shutil.rmtree

    def tell_too_late(folder: Path, number: int, record: bytes) -> None:
        is_writing.set()
        is_emptied.wait()
        tell(folder, number, record)

    def remove_slowly(path: Path, **options: Any) -> None:
        if is_writing.is_set():
            for file in path.iterdir():
                file.unlink()
            is_emptied.set()
            has_ended.wait()
        rmtree(path, **options)

    monkeypatch.setattr(snapshot_dir, "write_part_record", tell_too_late)
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
    assert DirectoryStorage(tmp_path / "shared", 3).steps() == [3, 1]
    clears_what_is_left(tmp_path / "shared")
