"""No snapshot has one part from before a change and another from after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpjob_trainer import Snapshots
from ddpjob_trainer.snapshots.model import staging
from ddpjob_trainer.snapshots.model.manifest import name_of
from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer
from trainer.runs import Run, assert_same

PATIENCE = 120
TENSORS = 12  # parameters, and a momentum for each


class Copying:
    """The copy beside training, tensor by tensor: it stops before the tensor `at`."""

    def __init__(self) -> None:
        self.at = 0
        self.has_stopped = threading.Event()
        self.may_go = threading.Event()
        self.has_copied = threading.Event()
        self.count = 0

    def before_each(self) -> None:
        if self.count == self.at:
            self.has_stopped.set()
            assert self.may_go.wait(PATIENCE)
        self.count += 1


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copying]:
    """One thread copies, and one tensor is a piece."""
    made, main, copy = Copying(), threading.current_thread(), SafetensorsBuffer.copy
    one_at_a_time = threading.Lock()

    def stopping(buffer: SafetensorsBuffer, names: Any) -> None:
        if threading.current_thread() is main:
            copy(buffer, names)
            return
        with one_at_a_time:
            made.before_each()
            copy(buffer, names)
            if made.count == TENSORS:
                made.has_copied.set()

    monkeypatch.setattr(SafetensorsBuffer, "copy", stopping)
    monkeypatch.setattr(staging, "PIECE_BYTES", 1)
    yield made
    made.may_go.set()


def started(tmp_path: Path) -> tuple[Run, Snapshots]:
    """A run after the first snapshot, which is not copied beside training."""
    run, snapshots = Run(width=64), Snapshots(tmp_path)
    run.train(2)
    snapshots.save(2, **run.parts())
    snapshots.wait()
    return run, snapshots


def clamp(run: Run) -> None:
    for each in run.model.parameters():
        each.data.clamp_(-0.01, 0.01)


def swap(run: Run) -> None:
    for each in run.model.parameters():
        each.data.copy_(torch.ones_like(each))


def swap_and_back(run: Run, copying: Copying) -> None:
    """Averaged weights for an evaluation, beside which the copy continues."""
    before = [each.detach().clone() for each in run.model.parameters()]
    swap(run)
    copying.may_go.set()
    assert copying.has_copied.wait(PATIENCE)
    for each, its in zip(run.model.parameters(), before, strict=True):
        each.data.copy_(its)


def step_of_another(run: Run) -> None:
    """The optimizer of one of two networks, which save() was not given."""
    run.model(torch.randn(8, 3)).square().sum().backward()
    torch.optim.SGD(run.model[2].parameters(), lr=0.1).step()


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("change", [clamp, swap, swap_and_back, step_of_another])
def test_a_change_during_the_copy_costs_that_snapshot_only(
    tmp_path: Path,
    copying: Copying,
    change: Callable[..., None],
    at: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, snapshots = started(tmp_path)
    copying.at = at
    assert snapshots.save(3, **run.parts())
    assert copying.has_stopped.wait(PATIENCE)
    if change is swap_and_back:
        swap_and_back(run, copying)
    else:
        change(run)
    copying.may_go.set()
    snapshots.wait()
    assert [path.name for path in tmp_path.glob("step-*")] == [name_of(2)]
    assert snapshots.skipped == 1
    assert "From now on save() returns after the copy" in caplog.text
    weights = run.weights()
    copying.count, copying.at = 0, 0
    copying.may_go.clear()
    copying.has_stopped.clear()
    assert snapshots.save(4, **run.parts())
    swap(run)
    snapshots.wait()
    assert not copying.has_stopped.is_set(), "copied before save() returned"
    again = Run(seed=1, width=64)
    loaded = Snapshots(tmp_path).load(**again.parts())
    assert loaded is not None
    assert loaded.step == 4
    assert_same(again.weights(), weights)


@pytest.mark.parametrize(("at", "step"), [(0, 3), (4, 2)], ids=["before", "amid"])
def test_a_change_that_no_sample_meets_is_saved_whole_or_not_at_all(
    tmp_path: Path, copying: Copying, at: int, step: int
) -> None:
    run, snapshots = started(tmp_path)
    copying.at = at
    snapshots.save(3, **run.parts())
    assert copying.has_stopped.wait(PATIENCE)
    for each in run.model.parameters():
        each.data.view(-1)[0] = 7.0
    copying.may_go.set()
    snapshots.wait()
    again = Run(seed=1, width=64)
    loaded = Snapshots(tmp_path).load(**again.parts())
    assert loaded is not None
    assert loaded.step == step
    firsts = {float(each.detach().view(-1)[0]) == 7.0 for each in again.model.parameters()}
    assert firsts == {step == 3}


def test_a_tensor_that_the_script_replaces_is_saved_as_it_was(
    tmp_path: Path, copying: Copying
) -> None:
    run, snapshots = started(tmp_path)
    weights = run.weights()
    snapshots.save(3, **run.parts())
    assert copying.has_stopped.wait(PATIENCE)
    for each in run.model.parameters():
        each.data = torch.ones_like(each)
    copying.may_go.set()
    snapshots.wait()
    again = Run(seed=1, width=64)
    loaded = Snapshots(tmp_path).load(**again.parts())
    assert loaded is not None
    assert loaded.step == 3
    assert_same(again.weights(), weights)


def test_a_change_at_any_moment_leaves_no_mixed_snapshot(tmp_path: Path) -> None:
    """Each weight is the number of its state."""
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(20):
        snapshots = Snapshots(tmp_path / str(number))
        for step in (1, 2):
            snapshots.wait()
            for each in model.parameters():
                each.data.fill_(step)
            snapshots.save(step, model=model, optimizer=optimizer)
        delay = torch.empty(number * 40_000).fill_(1)
        for each in model.parameters():
            each.data.fill_(3)
        del delay
        snapshots.wait()
        loaded = Snapshots(tmp_path / str(number)).load(model=model)
        assert loaded is not None
        found = {float(value) for each in model.parameters() for value in each.detach().unique()}
        assert found == {float(loaded.step)}
