"""A fenced membership adds no snapshot that a process resumes from, however late it writes."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ddpjob_protocol.environment import ENV_JOB, ENV_JOB_UID, ENV_MEMBERSHIP, ENV_SNAPSHOT_DIR
from ddpjob_trainer import FencedError, Snapshots
from ddpjob_trainer.snapshots.model import fencing
from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.snapshots.storage import durable
from trainer.runs import Run, assert_same
from trainer.snapshots.layout import committed, left_behind


class Directory:
    """One job's snapshots, and its memberships, each of which is one process here."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.where = str(path)
        self._patch = monkeypatch
        monkeypatch.setenv(ENV_SNAPSHOT_DIR, self.where)

    def enter(self, membership: str, job: str = "job", name: str = "") -> None:
        """Act as this membership from now on."""
        self._patch.setenv(ENV_MEMBERSHIP, membership)
        self._patch.setenv(ENV_JOB_UID, job)
        self._patch.setenv(ENV_JOB, name)

    def start(self, membership: str, job: str = "job", keep: int = 9) -> tuple[Snapshots, int]:
        """Return its snapshots, and the step from which it resumes."""
        self.enter(membership, job)
        snapshots = Snapshots(keep=keep)
        loaded = snapshots.load(**Run().parts())
        return snapshots, loaded.step if loaded else 0

    def overtake(self, now: str, by: str) -> None:
        """Resume in another membership while this one does something."""
        self.start(by)
        self.enter(now)

    def save(self, snapshots: Snapshots, step: int, trained: int | None = None) -> bool:
        run = after(step if trained is None else trained)
        return snapshots.save(step, **run.parts(), wait=True)

    def loaded(self) -> tuple[int, dict[str, torch.Tensor]]:
        """Return the step and the weights that a process of no job finds."""
        self._patch.delenv(ENV_MEMBERSHIP, raising=False)
        run = Run(seed=1)
        found = Snapshots(self.where).load(**run.parts())
        return found.step if found else 0, run.weights()

    def steps(self) -> list[int]:
        """Whole snapshots that are there, whether they count or not."""
        return committed(self.path)

    def fences(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("fence-*"))

    @contextlib.contextmanager
    def hidden(self, step: int) -> Iterator[None]:
        """Hide what is begun of a step, as from a process that has listed the folders before."""
        begun, aside = self.path / name_of(step), self.path / "aside"
        begun.rename(aside)
        yield
        aside.rename(begun)

    def just_before(self, name: str, action: Callable[[], None]) -> None:
        """Do it once, when a fence, or the manifest of a step, is about to get its name."""
        rename = Path.rename

        def late(source: Path, target: Path) -> Path:
            if name == (target.name if target.name[0] == "f" else target.parent.parent.name):
                self._patch.setattr(Path, "rename", rename)
                action()
            return rename(source, target)

        self._patch.setattr(Path, "rename", late)


def after(steps: int) -> Run:
    run = Run()
    run.train(steps)
    return run


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(tmp_path / "snapshots", monkeypatch)


def test_each_membership_resumes_from_the_one_before(directory: Directory) -> None:
    for n in range(1, 4):
        snapshots, step = directory.start(f"1.1.{n}")
        assert step == n - 1
        directory.save(snapshots, n)
    assert directory.steps() == [1, 2, 3]


def test_a_fenced_writer_saves_nothing(directory: Directory) -> None:
    old, _ = directory.start("1.1.1")
    directory.save(old, 1)
    directory.start("1.1.2")
    directory.enter("1.1.1")
    with pytest.raises(FencedError, match=r"membership 1\.1\.2 has resumed from step 1 .*"):
        directory.save(old, 2)
    assert directory.steps() == [1]


def test_a_write_that_comes_late_counts_for_nobody(directory: Directory) -> None:
    """The old writer is held just before the manifest gets its name, when all is checked.

    Its successor has not seen what it has begun.
    """
    old, _ = directory.start("1.1.1", keep=1)
    directory.save(old, 1)
    found = []

    def overtake() -> None:
        with directory.hidden(5):
            found.append(directory.start("1.1.2", keep=1))
        directory.enter("1.1.1")

    directory.just_before(name_of(5), overtake)
    with pytest.raises(FencedError):
        directory.save(old, 5)
    assert directory.steps() == [1, 5], "and it deletes nothing that others resume from"
    [(new, step)] = found
    assert step == 1
    assert directory.start("1.1.3")[1] == 1
    new, _ = directory.start("1.1.4", keep=1)
    directory.save(new, 3)
    assert directory.steps() == [3], "and it blocks no writer"


def test_a_successor_clears_what_was_begun_and_the_writer_is_told(directory: Directory) -> None:
    old, _ = directory.start("1.1.1")
    directory.save(old, 1)
    directory.just_before(name_of(5), lambda: directory.overtake("1.1.1", by="1.1.2"))
    with pytest.raises(FencedError, match=r"membership 1\.1\.2 has resumed from step 1"):
        directory.save(old, 5)
    assert directory.steps() == [1]
    assert left_behind(directory.path) == []


def test_the_successors_own_step_of_that_number_counts(directory: Directory) -> None:
    old, _ = directory.start("1.1.1")
    directory.just_before(name_of(2), lambda: directory.overtake("1.1.1", by="1.1.2"))
    with pytest.raises(FencedError):
        directory.save(old, 2, trained=7)
    new, _ = directory.start("1.1.3")
    directory.save(new, 2)
    run = Run(seed=1)
    directory.enter("1.1.4")
    loaded = Snapshots().load(**run.parts())
    assert loaded is not None
    assert loaded.step == 2
    assert_same(run.weights(), after(2).weights())


def test_a_snapshot_just_before_the_fence_is_resumed_from(directory: Directory) -> None:
    """The writer saw no fence yet, and may have deleted the snapshot that its successor chose."""
    old, _ = directory.start("1.1.1", keep=1)
    directory.save(old, 1)

    def save() -> None:
        directory.enter("1.1.1")
        directory.save(old, 2)
        directory.enter("1.1.2")

    directory.just_before("fence-000000000002", save)
    new, step = directory.start("1.1.2")
    assert step == 2
    assert directory.steps() == [2]
    directory.save(new, 3)
    assert directory.start("1.1.3")[1] == 3


def test_who_starts_late_may_not_overtake(directory: Directory) -> None:
    directory.start("1.1.2")
    with pytest.raises(FencedError, match=r"membership 1\.1\.1 is an earlier membership"):
        directory.start("1.1.1")
    with pytest.raises(FencedError):
        directory.start("1.1.1")
    assert directory.start("2.1.1")[1] == 0


def test_another_job_of_that_name_resumes(directory: Directory) -> None:
    old, _ = directory.start("3.2.9", "deleted")
    directory.save(old, 1)
    new, step = directory.start("1.1.1", "new")
    assert step == 1
    directory.save(new, 2)
    assert directory.start("1.1.2", "new")[1] == 2


def test_a_membership_that_resumes_from_memory_fences_the_one_before(directory: Directory) -> None:
    """The process has done step 3 when it enters; its first snapshot makes that known."""
    snapshots, _ = directory.start("1.1.1")
    directory.save(snapshots, 1)
    lost = Snapshots()
    lost.load(**Run().parts())
    directory.save(lost, 4)
    directory.enter("1.1.2")
    snapshots.resume_from(3)
    directory.save(snapshots, 3)
    assert directory.start("1.1.3")[1] == 3, "not 4"


def test_fences_stay_few_and_the_oldest_writer_is_limited(directory: Directory) -> None:
    oldest, _ = directory.start("1.1.1")
    directory.save(oldest, 1)

    def many() -> None:
        for n in range(2, 60):
            directory.start(f"1.1.{n}")
        directory.enter("1.1.1")

    directory.just_before(name_of(2), many)
    with pytest.raises(FencedError):
        directory.save(oldest, 2)
    assert len(directory.fences()) == fencing.KEEP
    assert directory.start("1.1.60")[1] == 1


def test_a_fence_that_cannot_be_read_is_passed_over(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, _ = directory.start("1.1.1")
    record = directory.path / "fence-000000000007"
    record.mkdir()
    (record / "fence.json").write_text('{"job": "job", "membership": "first", "step": 0}')
    with caplog.at_level(logging.WARNING, "ddpjob"):
        directory.save(snapshots, 1)
    assert f"{record / 'fence.json'} is ignored" in caplog.text
    assert directory.start("1.1.2")[1] == 1


def test_who_only_looks_overtakes_nobody(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a notebook, or an evaluation that names another job's directory."""
    training, _ = directory.start("1.1.1")
    directory.save(training, 1)
    directory.enter("1.1.1", "evaluation")
    assert Snapshots(directory.where).load(**Run().parts()) is not None
    monkeypatch.delenv(ENV_MEMBERSHIP)
    notebook = Snapshots(directory.where)
    assert notebook.load(**Run().parts()) is not None
    directory.enter("1.1.1")
    directory.save(training, 2)
    monkeypatch.delenv(ENV_MEMBERSHIP)
    directory.save(notebook, 5)
    directory.enter("1.1.1")
    with pytest.raises(FencedError, match=r"process \w+ has resumed from step 1"):
        directory.save(training, 3)


def test_without_fences_every_snapshot_counts(directory: Directory) -> None:
    snapshots, _ = directory.start("1.1.1")
    directory.save(snapshots, 1)
    for path in directory.path.glob("fence-*"):
        shutil.rmtree(path)
    assert directory.start("1.1.1", "new")[1] == 1
    assert directory.start("1.1.2", "new")[1] == 1


def test_a_job_starts_where_no_fence_can_be_written(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, _ = directory.start("1.1.1")
    directory.save(snapshots, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write", full)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        assert directory.start("1.1.2")[1] == 1
    assert "No space left on device" in caplog.text
