"""Saving delays no process, and a snapshot has the state of its step."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ddpjob_trainer import FencedError, SnapshotError, Snapshots, host_memory
from ddpjob_trainer.host_memory import MemoryHeadroom
from ddpjob_trainer.snapshots.storage import durable
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from ddpjob_trainer.snapshots.writing.async_writer import AsyncWriter
from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer, StagingBuffer
from support.forked import Forks
from trainer.runs import Run, assert_same

if TYPE_CHECKING:
    from trainer.conftest import Listener

Hold = Callable[[type, str], "Held"]


class Held:
    """A method that waits until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_go = threading.Event()


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Let all calls of a method from other threads than this one wait."""
    made: list[Held] = []
    mine = threading.current_thread()

    def let_wait(owner: type, name: str) -> Held:
        held, method = Held(), getattr(owner, name)
        made.append(held)

        def waiting(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not mine:
                held.begun.set()
                assert held.may_go.wait(120)
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, waiting)
        return held

    yield let_wait
    for held in made:
        held.may_go.set()


def loaded_weights(directory: Path) -> tuple[int, dict[str, torch.Tensor]]:
    run = Run(seed=1)
    loaded = Snapshots(directory).load(**run.parts())
    assert loaded is not None
    return loaded.step, run.weights()


def test_training_continues_while_a_snapshot_is_written(
    tmp_path: Path, hold: Hold, listener: Listener
) -> None:
    tmp_path /= "snapshots"
    writing = hold(SnapshotStorage, "commit")
    run, snapshots = Run(), Snapshots(tmp_path)
    run.train(3)
    at_save = run.weights()
    assert snapshots.save(3, **run.parts())
    assert writing.begun.wait(120)
    run.train(3, first=3)
    assert not snapshots.save(6, **run.parts()), "it is left out, not queued up"
    assert snapshots.skipped == 1
    assert list(tmp_path.glob("step-*")) == []
    writing.may_go.set()
    snapshots.wait()
    assert_same(loaded_weights(tmp_path), (3, at_save))
    assert snapshots.save(6, **run.parts(), wait=True)
    reports = [each for each in listener.pending() if each["event"] == "saved"]
    assert [(told["step"], told.get("skipped", 0)) for told in reports] == [(3, 0), (6, 1)]
    assert_same(loaded_weights(tmp_path), (6, run.weights()))


def test_of_many_skipped_steps_few_are_logged(
    tmp_path: Path, hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    writing = hold(SnapshotStorage, "commit")
    run, snapshots = Run(), Snapshots(tmp_path)
    snapshots.save(1, **run.parts())
    for step in range(2, 12):
        assert not snapshots.save(step, **run.parts())
    writing.may_go.set()
    snapshots.wait()
    logged = [text for text in caplog.messages if "is not saved" in text]
    assert [int(text.split()[1]) for text in logged] == [2, 3, 5, 9]
    assert "(8 such steps so far)" in logged[-1]
    assert snapshots.skipped == 10


def test_the_optimizer_waits_for_the_copy_and_nobody_else(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, snapshots = Run(), Snapshots(tmp_path)
    run.train(3)
    at_save = run.weights()
    snapshots.save(2, **run.parts())  # the first copy is not beside training
    snapshots.wait()
    copying = hold(SafetensorsBuffer, "copy")
    snapshots.save(3, **run.parts())
    assert copying.begun.wait(120)
    waits = threading.Event()
    let_change = AsyncWriter.wait_for_copy

    def told(writer: AsyncWriter) -> None:
        waits.set()
        let_change(writer)

    monkeypatch.setattr(AsyncWriter, "wait_for_copy", told)
    training = threading.Thread(target=run.train, args=(1,), kwargs={"first": 3})
    training.start()
    assert waits.wait(120), "forward and backward were done"
    assert not torch.equal(run.weights()["1.running_mean"], at_save["1.running_mean"])
    assert torch.equal(run.weights()["0.weight"], at_save["0.weight"])
    copying.may_go.set()
    training.join()
    snapshots.wait()
    assert not torch.equal(run.weights()["0.weight"], at_save["0.weight"])
    assert_same(loaded_weights(tmp_path), (3, at_save))


def test_the_next_call_raises_the_error(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def full(*_: object) -> None:
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    snapshots = Snapshots(tmp_path)
    monkeypatch.setattr(SnapshotStorage, "commit", full)
    snapshots.save(1, **run.parts())
    with pytest.raises(SnapshotError, match=r"Cannot save step 1 .* it is full"):
        snapshots.wait()
    assert "it is full" in caplog.text, "should nobody ask"
    snapshots.wait()  # reported once
    failed.clear()
    snapshots.save(2, **run.parts())
    assert failed.wait(120)
    monkeypatch.undo()
    with pytest.raises(SnapshotError, match="Cannot save step 2"):
        snapshots.save(3, **run.parts(), wait=True)
    snapshots.save(3, **run.parts(), wait=True)


def test_a_script_that_just_ends_has_saved(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "snapshots"
    script.write_text(f"""
import time
from ddpjob_trainer import Snapshots
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from trainer.runs import Run
upload = DirectoryFiles.upload
DirectoryFiles.upload = lambda *what: (time.sleep(0.5), upload(*what))
Snapshots({str(saved)!r}).save(7, **Run().parts())
""")
    assert forks.start(script, env=python_env).wait() == 0
    assert_same(loaded_weights(saved), (7, Run().weights()))


def test_a_new_owner_does_not_get_the_fence_error_of_the_previous_owner(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In live mode a process that was cut off joins again, and may never write again."""
    monkeypatch.setenv("DDPJOB_SNAPSHOT_DIR", str(tmp_path))
    monkeypatch.setenv("DDPJOB_JOB_UID", "job")

    def saving(membership: str) -> Snapshots:
        monkeypatch.setenv("DDPJOB_MEMBERSHIP", membership)
        return Snapshots()

    writing = hold(SnapshotStorage, "commit")
    old = saving("1.1.1")
    old.save(5, **Run().parts())
    assert writing.begun.wait(120)
    saving("1.1.2").load(**Run().parts())
    writing.may_go.set()
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.1")
    with pytest.raises(FencedError):
        old.wait()

    writing.begun.clear()
    writing.may_go.clear()
    newer = saving("1.1.3")
    newer.save(6, **Run().parts())
    assert writing.begun.wait(120)
    saving("1.1.4").load(**Run().parts())
    writing.may_go.set()
    monkeypatch.setenv("DDPJOB_MEMBERSHIP", "1.1.5")
    newer.wait()
    assert newer.save(7, **Run().parts(), wait=True)


# --- little memory ----------------------------------------------------------------------------------


def leave(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(host_memory, "memory_headroom", lambda: MemoryHeadroom(16 * free, 2 * free))


def test_without_memory_for_a_copy_training_waits_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: Listener
) -> None:
    leave(monkeypatch, 10)
    run, snapshots = Run(), Snapshots(tmp_path / "snapshots")
    run.train(3)
    assert snapshots.save(3, **run.parts())
    assert_same(loaded_weights(tmp_path / "snapshots"), (3, run.weights()))
    [told] = [each for each in listener.pending() if each["event"] == "saved"]
    assert "training pauses while one is written" in told["problem"]


def test_without_memory_for_a_copy_after_all_the_state_is_written_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: Listener
) -> None:
    def none_left(*_: object, **__: object) -> torch.Tensor:
        raise MemoryError

    run, snapshots = Run(), Snapshots(tmp_path / "snapshots")
    monkeypatch.setattr(StagingBuffer, "allocate", none_left)
    for step in (3, 4):
        run.train(1)
        assert snapshots.save(step, **run.parts())
    assert_same(loaded_weights(tmp_path / "snapshots"), (4, run.weights()))
    problems = [each["problem"] for each in listener.pending() if each["event"] == "saved"]
    assert len(problems) == 2
    assert all("no host memory for a snapshot" in each for each in problems)


def test_a_state_that_somebody_else_changes_meanwhile_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(monkeypatch, 10)
    run, snapshots = Run(), Snapshots(tmp_path)
    run.train(3)
    write_all = durable.write_all

    def changing(chunks: Iterator[memoryview], path: Path) -> None:
        write_all(chunks, path)
        with torch.no_grad():
            next(run.model.parameters()).add_(1)

    monkeypatch.setattr(durable, "write_all", changing)
    with pytest.raises(SnapshotError, match="changed while it was copied"):
        snapshots.save(3, **run.parts())
    assert list(tmp_path.glob("step-*")) == []
