"""A save returns True for what it wrote, and two jobs never mix in one storage."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run, assert_same
from trainer.snapshots.test_fences import Directory, after

A, B = "team/digits", "team/letters"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(tmp_path / "snapshots", monkeypatch)


# What a save claims


@pytest.mark.parametrize("of_a_job", [True, False], ids=["a job", "a process"])
def test_a_run_that_has_not_loaded_saves_nothing_beside_snapshots(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, of_a_job: bool
) -> None:
    """Else it would train on, and the next start would resume from the earlier run's step 9."""
    old, _ = directory.start("1.1.1")
    directory.save(old, 9)
    directory.enter("1.1.2")
    if not of_a_job:
        monkeypatch.delenv("DDPJOB_MEMBERSHIP")
    forgetful = Snapshots()
    for step in (1, 10):
        with pytest.raises(SnapshotError, match=r"the newest of step 9, .*has not loaded") as error:
            directory.save(forgetful, step)
    assert "Call load() before the first save(), or save in another directory" in str(error.value)
    assert directory.steps() == [9]
    assert forgetful.load(**Run().parts()) is not None
    assert directory.save(forgetful, 10)


def test_a_step_is_saved_once(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    """Such as after update_bn: save() returns False for the later state."""
    snapshots, _ = directory.start("1.1.1")
    assert directory.save(snapshots, 5)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        assert not directory.save(snapshots, 5, trained=8)
    assert "step 5 is not saved again" in caplog.text
    step, weights = directory.loaded()
    assert step == 5
    assert_same(weights, after(5).weights())


def test_the_step_that_was_loaded_is_not_saved_again(directory: Directory) -> None:
    snapshots, _ = directory.start("1.1.1")
    assert directory.save(snapshots, 5)
    again, step = directory.start("1.1.2")
    assert step == 5
    assert not directory.save(again, 5, trained=8)
    with pytest.raises(SnapshotError, match="Step 4 is before step 5, from which this run resumed"):
        directory.save(again, 4)
    assert directory.save(again, 6)


def test_a_step_whose_save_failed_may_be_saved_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, _ = directory.start("1.1.1")
    storage = type(snapshots._storage)

    def refuse(*_: object) -> None:
        raise SnapshotError("it does not work just now")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "commit", refuse)
        with pytest.raises(SnapshotError, match="just now"):
            directory.save(snapshots, 5)
    assert directory.save(snapshots, 5)
    assert directory.loaded()[0] == 5


# Two jobs


def test_a_job_of_another_name_does_not_resume(directory: Directory) -> None:
    directory.enter("1.1.1", "1", A)
    first = Snapshots()
    first.load(**Run().parts())
    directory.save(first, 5)
    directory.enter("1.1.1", "2", B)
    run = Run(seed=1)
    for _ in range(2):
        with pytest.raises(SnapshotError, match=f"is of job {A}, and this job is {B}") as error:
            Snapshots().load(**run.parts())
    assert "Snapshots(other_job=True)" in str(error.value)
    assert_same(run.weights(), Run(seed=1).weights())
    directory.enter("1.1.1", "1", A)
    assert directory.save(first, 6), "the first job is not disturbed"


def test_a_job_that_is_asked_to_continues_another_and_deletes_nothing_of_it(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.enter("1.1.1", "1", A)
    first = Snapshots()
    first.load(**Run().parts())
    for step in (3, 5):
        directory.save(first, step)
    directory.enter("1.1.1", "2", B)
    second = Snapshots(keep=1, other_job=True)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        loaded = second.load(**Run().parts())
    assert loaded is not None
    assert loaded.step == 5
    assert f"step 5 of an earlier job: membership 1.1.1 of job {A}, uid 1" in caplog.text
    for step in (6, 7):
        assert directory.save(second, step)
    assert directory.steps() == [3, 5, 7]
    directory.enter("1.1.1", "1", A)
    with pytest.raises(SnapshotError, match=f"membership 1.1.1 of job {B} has resumed from step 5"):
        directory.save(first, 6)


def test_the_model_of_another_job_is_loaded_from_its_directory_but_not_continued_there(
    directory: Directory,
) -> None:
    directory.enter("1.1.1", "1", A)
    first = Snapshots()
    first.load(**Run().parts())
    directory.save(first, 5)
    directory.enter("1.1.1", "2", B)
    model = Snapshots(directory.where)
    assert model.load(**Run().parts()) is not None
    with pytest.raises(SnapshotError, match=f"is of job {A}, and this job is {B}"):
        directory.save(model, 6)
    directory.enter("1.1.1", "1", A)
    assert directory.save(first, 6)


def test_a_job_created_again_says_from_which_it_resumes(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.enter("3.1.7", "1", A)
    first = Snapshots()
    first.load(**Run().parts())
    directory.save(first, 5)
    directory.enter("1.1.1", "2", A)
    again = Snapshots(keep=1)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        assert again.load(**Run().parts()) is not None
    assert f"step 5 of an earlier job: membership 3.1.7 of job {A}, uid 1" in caplog.text
    directory.save(again, 6)
    assert directory.steps() == [6], "and retention treats both as one"
