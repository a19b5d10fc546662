"""The guarantees of fences in a directory hold in a real object store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpjob_protocol.environment import ENV_SNAPSHOT_URI
from ddpjob_trainer import FencedError, SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.snapshots.storage import bucket as bucket_files
from ddpjob_trainer.snapshots.storage.bucket import BucketFiles
from store.objects_of import bucket, content, delete, names, parts_of, replace
from trainer.runs import Run, assert_same
from trainer.snapshots import test_fences as in_a_directory

# Run here, with the fixture below.
from trainer.snapshots.test_claims import (  # noqa: F401
    test_a_job_created_again_says_from_which_it_resumes,
    test_a_job_of_another_name_does_not_resume,
    test_a_job_that_is_asked_to_continues_another_and_deletes_nothing_of_it,
    test_a_run_that_has_not_loaded_saves_nothing_beside_snapshots,
    test_a_step_is_saved_once,
    test_a_step_whose_save_failed_may_be_saved_again,
    test_the_model_of_another_job_is_loaded_from_its_directory_but_not_continued_there,
    test_the_step_that_was_loaded_is_not_saved_again,
)
from trainer.snapshots.test_fences import (  # noqa: F401
    Directory,
    after,
    test_a_fenced_writer_saves_nothing,
    test_a_membership_that_resumes_from_memory_fences_the_one_before,
    test_a_snapshot_just_before_the_fence_is_resumed_from,
    test_a_write_that_comes_late_counts_for_nobody,
    test_another_job_of_that_name_resumes,
    test_each_membership_resumes_from_the_one_before,
    test_fences_stay_few_and_the_oldest_writer_is_limited,
    test_the_successors_own_step_of_that_number_counts,
    test_who_only_looks_overtakes_nobody,
    test_who_starts_late_may_not_overtake,
)


class Prefix(Directory):
    """One job's snapshots below a URI, and its memberships."""

    def __init__(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(Path("/nowhere"), monkeypatch)
        self.where = uri
        monkeypatch.setenv(ENV_SNAPSHOT_URI, uri)

    def steps(self) -> list[int]:
        return sorted(bucket(self.where).all_steps())

    def fences(self) -> list[str]:
        return [name for name in names(self.where) if name.startswith("fence-")]

    @contextlib.contextmanager
    def hidden(self, step: int) -> Iterator[None]:
        """Hide what is begun of a step."""
        begun = {name: content(self.where, name) for name in parts_of(self.where, step)}
        for name in begun:
            delete(self.where, name)
        yield
        for name, data in begun.items():
            replace(self.where, name, data)

    def just_before(self, name: str, action: Callable[[], None]) -> None:
        """Do it once, when something is about to get that name: a manifest shows a step."""
        kind = "put" if name.startswith("step-") else "create"
        request = getattr(BucketFiles, kind)

        def late(objects: BucketFiles, target: str, content: bytes) -> bool | None:
            if target.startswith(name) and target.endswith(".json"):
                self._patch.setattr(BucketFiles, kind, request)
                action()
            result: bool | None = request(objects, target, content)
            return result

        self._patch.setattr(BucketFiles, kind, late)


@pytest.fixture
def directory(uri: str, monkeypatch: pytest.MonkeyPatch) -> Prefix:
    return Prefix(uri, monkeypatch)


def test_all_that_hold_for_a_directory_are_here() -> None:
    """Run all but the tests of folders that a user made, deleted or could not write."""
    of_folders = {
        "test_a_fence_that_cannot_be_read_is_passed_over",
        "test_without_fences_every_snapshot_counts",
        "test_a_job_starts_where_no_fence_can_be_written",
        "test_a_successor_clears_what_was_begun_and_the_writer_is_told",
    }
    assert {n for n in vars(in_a_directory) if n.startswith("test_")} - of_folders < {*globals()}


def test_of_many_writers_that_resume_at_once_each_has_its_own_number(uri: str) -> None:
    taken: list[int] = []
    ready = threading.Barrier(8)

    def take(n: int) -> None:
        place = bucket(uri)
        ready.wait()
        taken.append(place.fence(Owner("", f"process-{n}"), 0).number)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 9))


def test_a_manifest_whose_tensors_are_gone_already_is_in_nobodys_way(
    directory: Prefix, caplog: pytest.LogCaptureFixture
) -> None:
    """The successor has deleted the objects of the old writer; then the old writer continues."""
    old, _ = directory.start("1.1.1")
    directory.save(old, 1)

    def successor() -> None:
        new, _ = directory.start("1.1.2")
        directory.save(new, 2)
        directory.enter("1.1.1")

    directory.just_before(name_of(5), successor)
    with pytest.raises(FencedError):
        directory.save(old, 5)
    assert [name for name in names(directory.where) if name.startswith("step-000000000005")]
    new, step = directory.start("1.1.3")
    assert step == 2
    assert caplog.records == []
    directory.save(new, 3)
    assert directory.steps() == [1, 2, 3]


def test_two_that_both_count_save_one_step(directory: Prefix) -> None:
    """The older writer was delayed while its successor, with that state in memory, saved it, too.

    The successor has not seen what the older one has begun.
    """
    old, _ = directory.start("1.1.1")
    directory.save(old, 1)

    def successor() -> None:
        directory.enter("1.1.2")
        new = Snapshots()
        new.resume_from(2)
        with directory.hidden(2):
            directory.save(new, 2)
        directory.enter("1.1.1")

    directory.just_before(name_of(2), successor)
    with pytest.raises(FencedError):
        directory.save(old, 2, trained=7)
    assert len(parts_of(directory.where, 2)) == 4
    run = Run(seed=1)
    directory.enter("1.1.3")
    loaded = Snapshots().load(**run.parts())
    assert loaded is not None
    assert loaded.step == 2
    assert_same(run.weights(), after(2).weights())


def test_a_store_that_replaces_what_it_should_only_create_is_refused(
    directory: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = bucket_files.obstore.put

    def careless(*arguments: object, mode: object = None, **options: object) -> object:
        return put(*arguments, **options)

    monkeypatch.setattr(bucket_files.obstore, "put", careless)
    with pytest.raises(SnapshotError, match=r"replaces an object .* \(If-None-Match: \*\)"):
        directory.start("1.1.1")
    monkeypatch.undo()


def test_a_store_that_cannot_only_create_is_refused(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(SnapshotError, match="cannot refuse to replace an object"):
        Snapshots(uri).save(1, **after(1).parts(), wait=True)
