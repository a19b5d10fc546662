"""Several ranks put parts of one snapshot into a bucket: it is whole, or does not exist."""

from __future__ import annotations

import pytest

from ddpjob_trainer import FencedError, Snapshots
from ddpjob_trainer.snapshots.model import write_plan
from ddpjob_trainer.snapshots.model.fencing import Owner
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.model.write_plan import PartsMissingError
from store.objects_of import after, bucket, content, delete, names, parts_of, replace
from trainer.runs import Run, assert_same
from trainer.snapshots.in_parts import content_of, publish

ME = Owner("", "me")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_plan, "LEAST_BYTES", 1)


def kinds(uri: str, step: int) -> list[str]:
    return [name.rpartition("/")[2].split("-")[0] for name in parts_of(uri, step)]


def test_what_two_ranks_put_is_loaded_and_goes_as_one(uri: str) -> None:
    place = bucket(uri, keep=1)
    fence = place.fence(ME, 0)
    publish(place, 3, after(3), fence)
    assert kinds(uri, 3) == ["manifest", "tensors", "tensors.safetensors"]
    run = Run(seed=1)
    loaded = Snapshots(uri).load(**run.parts())
    assert loaded is not None
    assert_same(run.weights(), after(3).weights())
    assert_same(run.optimizer.state_dict(), after(3).optimizer.state_dict())
    publish(place, 4, after(4), fence)
    assert parts_of(uri, 3) == []
    assert place.info(4).size == sum(
        len(content(uri, name)) for name in parts_of(uri, 4) if "tensors" in name
    )


def test_each_part_counts(uri: str) -> None:
    place = bucket(uri)
    publish(place, 3, after(3), place.fence(ME, 0))
    [part] = [name for name in parts_of(uri, 3) if name.endswith("tensors-1.safetensors")]
    whole = content(uri, part)
    replace(uri, part, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UnusableError, match=r"checksum of tensors-1\.safetensors"):
        place.check(3)
    delete(uri, part)
    with pytest.raises(UnusableError, match=r"tensors-1\.safetensors is missing"):
        place.check(3, content=False)


def test_what_was_given_up_is_nothing_and_is_deleted_later(uri: str) -> None:
    place = bucket(uri)
    fence = place.fence(ME, 0)
    whole, part = content_of(3, after(3), 1, fence, "0" * 8)
    place.write_part(3, whole, part)
    rest, first = content_of(4, after(4), 0, fence, "1" * 8, over=lambda: True)
    with pytest.raises(PartsMissingError):
        place.commit(4, rest, fence, first)
    assert place.all_steps() == []
    assert kinds(uri, 3) == ["part", "tensors"]
    assert kinds(uri, 4) == []
    publish(place, 5, after(5), place.fence(Owner("", "another"), 0))
    assert kinds(uri, 3) == []
    assert place.steps() == [5]


def test_a_fenced_writer_adds_no_object_that_counts(uri: str) -> None:
    place = bucket(uri)
    fence = place.fence(ME, 0)
    place.fence(Owner("", "another"), 2)
    with pytest.raises(FencedError):
        publish(place, 3, after(3), fence)
    assert place.all_steps() == []
    assert not [name for name in names(uri) if "manifest" in name]
