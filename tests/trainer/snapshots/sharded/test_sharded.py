"""A sharded model: four ranks save, any number of ranks loads, and the training continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddpjob_trainer import Snapshots
from ddpjob_trainer.__main__ import main
from ddpjob_trainer.snapshots.model.manifest import UnusableError, name_of
from support.forked import Forks, environment
from trainer.snapshots.layout import folder_of, storage_in
from trainer.snapshots.sharded.ranks import Training

SCRIPT = Path(__file__).with_name("ranks.py")
CLOSE = 1e-5  # sums of other numbers of ranks are rounded in another way


class Story:
    """The findings of four ranks, and their folder."""

    def __init__(self, folder: Path, seen: list[dict[str, Any]], alone: list[float]) -> None:
        self.folder = folder
        self.seen = seen
        self.alone = alone  # the losses of an undisturbed process after 5 and 8 steps

    def of(self, key: str, ranks: int = 4) -> Any:
        """The finding of all ranks, which has to be the same."""
        values = [rank[key] for rank in self.seen[:ranks]]
        assert values == [values[0]] * ranks
        return values[0]


@pytest.fixture(scope="module")
def story(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("sharded")
    alone, losses, snapshots = Training(1, "plain"), [], Snapshots(folder / "plain")
    for first, last in ((0, 5), (5, 8)):
        alone.train(first, last)
        losses.append(alone.loss())
        snapshots.save(last, **alone.parts, wait=True)
    with (folder / "errors").open("wb") as errors:
        ranks = [
            forks.start(SCRIPT, rank, folder, env=environment(), errors=errors) for rank in range(4)
        ]
        codes = [rank.wait() for rank in ranks]
    assert codes == [0, -9, 0, 0], (folder / "errors").read_text()
    return Story(
        folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)], losses
    )


def is_close(loss: float, expected: float) -> bool:
    return abs(loss - expected) <= CLOSE


def test_what_four_ranks_save_is_loaded_by_four_three_two_and_one(story: Story) -> None:
    assert story.of("nothing")
    assert story.of("saved")
    assert story.of("saved too"), "while training continues"
    assert is_close(story.of("loss"), story.alone[0])
    for kind, worlds in (("fsdp", (3, 2, 1)), ("tensor", (2,))):
        for world in worlds:
            step, loss, extra = story.of(f"shared, {world} {kind}", world)
            assert (step, extra) == (5, {"best": 0.25})
            assert is_close(loss, story.alone[0])


def test_training_continues_as_if_nothing_had_happened(story: Story) -> None:
    """With the optimizer's state, by the parameters' names: the script's order is another one."""
    assert is_close(story.of("loss later"), story.alone[1])
    for world in (3, 2, 1):
        assert is_close(story.of(f"shared, {world} fsdp later", world), story.alone[1])
    assert is_close(story.of("shared, 2 tensor later", 2), story.alone[1])


def test_two_dimensions_of_ranks_hold_each_element_once(story: Story) -> None:
    assert story.of("two dimensions") == [5, pytest.approx(story.alone[0], abs=CLOSE)]
    assert story.of("two dimensions saved")
    for world in (3, 2, 1):
        step, loss, _ = story.of(f"both, {world} fsdp", world)
        assert step == 5
        assert is_close(loss, story.alone[0])
    for folder in ("shared", "both"):
        files = [
            load_file(path) for path in folder_of(story.folder / folder, 5).glob("*.safetensors")
        ]
        weights = [
            tensor.numel()
            for file in files
            for name, tensor in file.items()
            if name.startswith("model.")
        ]
        assert sum(weights) == sum(each.numel() for each in Training(1, "plain").model.parameters())


def test_one_process_may_save_what_ranks_load_and_the_other_way_round(story: Story) -> None:
    for kind in ("fsdp", "both", "tensor"):
        step, loss = story.of(f"from plain, {kind}")
        assert step == 8
        assert is_close(loss, story.alone[1])
    alone = Training(7, "plain")
    loaded = Snapshots(story.folder / "shared").load(**alone.parts)
    assert loaded is not None
    assert (loaded.step, loaded.extra) == (5, {"best": 0.25})
    assert is_close(alone.loss(), story.alone[0])
    alone.train(5, 8)
    assert is_close(alone.loss(), story.alone[1])


def test_a_damaged_chunk_is_found_by_the_rank_that_needs_it(story: Story) -> None:
    """Then all ranks take the snapshot before, of which nothing is mixed with the damaged one."""
    step, loss = story.of("damaged", 2)
    assert step == 3
    alone = Training(1, "plain")
    alone.train(0, 3)
    assert is_close(loss, alone.loss())
    with pytest.raises(UnusableError, match=r"the checksum of tensors-2\.safetensors"):
        storage_in(story.folder / "harmed", 3).check(5)


def test_a_fenced_membership_adds_no_snapshot(story: Story) -> None:
    assert story.of("fenced", 2).startswith("FencedError: membership 1.2.2 has resumed from step 3")
    assert story.of("steps", 2) == [name_of(3), name_of(5)]


def test_a_rank_that_dies_in_a_save_costs_that_snapshot_and_nothing_else(story: Story) -> None:
    storage = storage_in(story.folder / "shared", 3)
    assert storage.steps() == [5, 3]
    storage.check(5)
    step, loss, _ = story.of("shared, 1 fsdp", 1)
    assert (step, is_close(loss, story.alone[0])) == (5, True)


def test_directories_that_are_not_shared_are_refused_at_once(story: Story) -> None:
    for rank, seen in enumerate(story.seen):
        for text in seen["apart"]:
            assert text.startswith("SnapshotError: The model is sharded, but the workers do not ")
            assert "Use a claim with ReadWriteMany (spec.snapshot.storage), or a bucket" in text
        assert [*(story.folder / f"apart-{rank}").glob("*step*")] == []


def test_every_rank_learns_what_one_rank_cannot_save(story: Story) -> None:
    assert "optimizer.param_groups[0].note is a builtins.object" in story.of("unsavable")


def test_after_a_failed_load_no_rank_trains_or_saves_until_one_succeeds(story: Story) -> None:
    for seen in story.seen[:2]:
        for name, cause in (
            ("unusable", "none is usable"),
            ("one misfits", "The script does not fit"),
        ):
            assert cause in seen[f"{name}: load"]
            for what in ("due", "save"):
                assert "load() has failed" in seen[f"{name}: {what}"], (name, what)
        assert "its optimizer was AdamW, the script's is SGD" in seen["plain: load"]
        assert "load() has failed" in seen["plain: save"]
    assert story.of("good again", 2) == [5, True]


def test_a_snapshot_is_exported_as_whole_tensors(story: Story) -> None:
    file = story.folder / "model.pt"
    assert main(["export", str(story.folder / "shared"), str(file)]) == 0
    alone = Training(7, "plain")
    alone.model.load_state_dict(torch.load(file, weights_only=True))
    assert is_close(alone.loss(), story.alone[0])


def test_a_load_takes_little_more_memory_than_the_rank_holds(story: Story) -> None:
    for rank in story.seen[:2]:
        share, is_right = rank["memory"]
        assert is_right
        assert share <= 1.1
