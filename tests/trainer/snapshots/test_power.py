"""After a power failure, whenever it comes, what was announced is there, and nothing is half there."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ddpjob_trainer import Snapshots
from ddpjob_trainer.reporting import progress
from ddpjob_trainer.snapshots.model import fencing, write_plan
from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles
from ddpjob_trainer.snapshots.storage.fence_files import FenceFiles
from trainer.runs import Run, assert_same
from trainer.snapshots import in_parts
from trainer.snapshots.layout import storage_in
from trainer.snapshots.power import Disk, Op, Recorder, write

SAMPLES = 6  # states for each moment, beside the extremes


@dataclasses.dataclass
class Story:
    """The operations of one membership after a base, and the weights of each step."""

    base: Path
    ops: list[Op]
    weights: dict[int, dict[str, torch.Tensor]]


def trained(steps: int) -> Run:
    run = Run()
    run.train(steps)
    return run


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Steps 1 and 2 are there; a later membership saves 3 and 4, and 5 by two ranks; two stay."""
    folder_of_test = tmp_path_factory.mktemp("power")
    base, live = folder_of_test / "base", folder_of_test / "live"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDPJOB_JOB_UID", "job")
        patch.setenv("DDPJOB_SNAPSHOT_DIR", str(base))
        patch.setenv("DDPJOB_MEMBERSHIP", "1.1.1")
        before = Snapshots(keep=2)
        for step in (1, 2):
            before.save(step, **trained(step).parts(), wait=True)
        shutil.copytree(base, live)
        patch.setenv("DDPJOB_SNAPSHOT_DIR", str(live))
        patch.setenv("DDPJOB_MEMBERSHIP", "1.1.2")
        recorder = Recorder(live)
        recorder.adopt()
        patch.setattr(progress, "saved", lambda step, **_: recorder.say(f"saved {step}"))
        patch.setattr(progress, "resumed", lambda _, **__: recorder.say("fence stands"))
        recorder.install(patch)
        after = Snapshots(keep=2)
        after.load(**Run().parts())
        for step in (3, 4):
            after.save(step, **trained(step).parts(), wait=True)
        patch.setattr(write_plan, "LEAST_BYTES", 1)
        in_parts.publish(storage_in(live, 2), 5, trained(5), after._writer_fence.fence())
        recorder.say("saved 5")
    return Story(base, recorder.ops, {step: trained(step).weights() for step in (1, 2, 3, 4, 5)})


def violations(story: Story, ops: list[Op], tmp_path: Path) -> Iterator[str]:
    """Yield the broken promises in each state that a failure may leave."""
    disk, announced, has_fence = Disk(story.base), 2, False
    seen: set[str] = set()
    for moment, op in enumerate(ops):
        if op.what == "announced":
            has_fence = True
            announced = int(op.name.split()[1]) if op.name.startswith("saved") else announced
        disk.do(op)
        for number, tree in enumerate(disk.after_failures(SAMPLES, moment)):
            key = f"{announced} {has_fence} {tree!r}"
            if key in seen:
                continue
            seen.add(key)
            path = tmp_path / f"{moment}-{number}"
            write(tree, path)
            yield from judge(story, path, announced, has_fence=has_fence)
            shutil.rmtree(path)


def judge(story: Story, path: Path, announced: int, *, has_fence: bool) -> Iterator[str]:
    run = Run(seed=9)
    loaded = Snapshots(path).load(**run.parts())
    if loaded is None or loaded.step < announced:
        yield f"{path.name}: {announced} was announced, {loaded and loaded.step} is there"
    else:
        assert_same(run.weights(), story.weights[loaded.step])
    seen = storage_in(path, 9).list_candidates((0,), fencing.Owner("", "reader"))
    yield from (f"{path.name}: half there: {each}" for each in seen.unusable)
    owners = [
        fence.owner.membership for fence in fencing.FenceLog(FenceFiles(DirectoryFiles(path))).all()
    ]
    if has_fence and "1.1.2" not in owners:
        yield f"{path.name}: the fence is gone"


def test_what_was_announced_survives_a_power_failure_at_any_moment(
    story: Story, tmp_path: Path
) -> None:
    assert [op.name for op in story.ops if op.what == "announced"] == [
        "fence stands", "saved 3", "saved 4", "saved 5"
    ]  # fmt: skip
    assert [*violations(story, story.ops, tmp_path)] == []


SYNCS = [
    *("fence.json", "fence's folder", "directory"),
    *("step's folder", "directory again", "tensors", "snapshot's folder"),
    *("manifest", "snapshot's folder again", "step of a deleted one"),
]
ANOTHER_RANKS = len(SYNCS) + 7 + 2  # the second snapshot needs no fence


@pytest.mark.parametrize(
    "number", [*range(len(SYNCS)), ANOTHER_RANKS], ids=[*SYNCS, "another rank's tensors"]
)
def test_each_sync_is_needed(story: Story, tmp_path: Path, number: int) -> None:
    """Without any one of them something is lost."""
    places = [i for i, op in enumerate(story.ops) if op.what.startswith("sync")]
    assert len(places) == ANOTHER_RANKS + 11
    ops = [op for i, op in enumerate(story.ops) if i != places[number]]
    assert next(violations(story, ops, tmp_path), None) is not None
