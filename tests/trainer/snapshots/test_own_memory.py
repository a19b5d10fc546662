"""A load reads into the model's own tensors, where that gives what a copy would give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run
from trainer.snapshots.layout import folder_of


def harm(directory: Path) -> bytes:
    """Flip the last bit of the only snapshot; return what it was."""
    file = folder_of(directory, 1) / "tensors.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    return content


def test_a_model_that_a_failed_load_has_overwritten_is_not_trained_or_saved(tmp_path: Path) -> None:
    Snapshots(tmp_path).save(1, **Run(seed=1).parts(), wait=True)
    run, snapshots = Run(seed=2), Snapshots(tmp_path)
    good = harm(tmp_path)
    with pytest.raises(SnapshotError, match="none is usable"):
        snapshots.load(**run.parts())
    with pytest.raises(SnapshotError, match=r"load\(\) has failed"):
        snapshots.due(1)
    with pytest.raises(SnapshotError, match=r"load\(\) has failed"):
        snapshots.save(2, **run.parts())
    folder, aside = folder_of(tmp_path, 1), tmp_path.with_name("aside")
    folder.rename(aside)
    with pytest.raises(SnapshotError, match=r"load\(\) has failed"):
        snapshots.load(**run.parts())  # there is none, but the model is not a new one
    aside.rename(folder)
    (folder / "tensors.safetensors").write_bytes(good)
    assert snapshots.load(**run.parts()) is not None
    assert snapshots.save(2, **run.parts(), wait=True)


def test_a_script_that_does_not_fit_is_not_trained_after_its_load_failed(tmp_path: Path) -> None:
    """A script that catches the error would replace the good snapshots by a random model."""
    Snapshots(tmp_path).save(1, **Run(seed=1).parts(), wait=True)
    snapshots, other = Snapshots(tmp_path), torch.nn.Linear(2, 2)
    unsavable = torch.optim.SGD([{"params": other.parameters(), "note": object()}])
    for optimizer, cause in ((unsavable, r"builtins\.object"), (None, "does not fit")):
        with pytest.raises(SnapshotError, match=cause):
            snapshots.load(model=other, optimizer=optimizer)
        with pytest.raises(SnapshotError, match=r"load\(\) has failed"):
            snapshots.due(1)
        with pytest.raises(SnapshotError, match=r"load\(\) has failed"):
            snapshots.save(2, model=other)
    assert Snapshots(tmp_path / "new").save(2, model=other, wait=True), (
        "another directory is a new start"
    )
    run = Run(seed=2)
    assert snapshots.load(**run.parts()) is not None
    assert snapshots.save(2, **run.parts(), wait=True)


def test_an_older_snapshot_replaces_what_a_damaged_one_has_left(tmp_path: Path) -> None:
    first, second = Run(seed=1), Run(seed=2)
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, **first.parts(), wait=True)
    snapshots.save(2, **second.parts(), wait=True)
    file = folder_of(tmp_path, 2) / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    run, others = Run(seed=3), Snapshots(tmp_path)
    loaded = others.load(**run.parts())
    assert loaded is not None
    assert loaded.step == 1
    for name, weight in first.weights().items():
        assert torch.equal(run.weights()[name], weight)
    assert others.save(3, **run.parts(), wait=True)


class Renamed(torch.nn.Module):
    """A model whose next version has exchanged the names of its layers."""

    def __init__(self, *, is_next: bool) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        self.is_next = is_next

    def _load_from_state_dict(self, state: dict[str, Any], *others: Any) -> None:
        if self.is_next:
            for kind in ("weight", "bias"):
                one, two = f"one.{kind}", f"two.{kind}"
                state[one], state[two] = state[two], state[one]
        super()._load_from_state_dict(state, *others)


def test_a_model_that_renames_its_weights_loads_them_right(tmp_path: Path) -> None:
    saved, loaded = Renamed(is_next=False), Renamed(is_next=True)
    Snapshots(tmp_path).save(1, model=saved, wait=True)
    Snapshots(tmp_path).load(model=loaded)
    assert torch.equal(loaded.one.weight, saved.two.weight)
    assert torch.equal(loaded.two.weight, saved.one.weight)


def test_layers_that_have_come_to_share_a_weight_get_the_last_one(tmp_path: Path) -> None:
    def model(*, is_tied: bool) -> torch.nn.Sequential:
        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        if is_tied:
            layers[1].weight = layers[0].weight
        return layers

    for was, now in ((False, True), (True, False)):
        directory = tmp_path / f"{was}"
        saved, loaded, expected = (model(is_tied=each) for each in (was, now, now))
        Snapshots(directory).save(1, model=saved, wait=True)
        Snapshots(directory).load(model=loaded)
        expected.load_state_dict(saved.state_dict())
        for name, weight in expected.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], weight), name
