"""The user's own state is undone with a step, mostly without a copy of its tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.elastic.state.extra_backup import ExtraBackup
from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.transfer.agreement import BEGINNING
from trainer.runs import Run

SIZE = 1000
MEMBERSHIP = MembershipId(1, 1, 7)


class Average:
    """A moving average, with a number and a list beside it."""

    def __init__(self) -> None:
        self.mean = torch.zeros(SIZE)
        self.rows: list[Any] = [torch.zeros(2), {"seen": 0}]

    def update(self, value: float) -> None:
        self.mean.mul_(0.5).add_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.copy_(state["mean"])
        self.rows = state["rows"]


def whole_step(backup: ExtraBackup, own: Average, value: float) -> None:
    backup.take()
    backup.on_optimizer_step()
    own.update(value)


def copied(backup: ExtraBackup) -> int:
    return sum(held.copy.numel() for held in backup._held.values() if held.copy is not None)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_changes_after_the_optimizers_step_is_not_copied(steps: int) -> None:
    own = Average()
    backup = ExtraBackup(own)
    for number in range(steps):
        whole_step(backup, own, number)
    before = own.mean.clone()
    backup.take()
    assert copied(backup) == (0 if steps else SIZE + 2)
    own.rows[1]["seen"] = 5
    assert backup.restore()
    assert torch.equal(own.mean, before)
    assert own.rows[1] == {"seen": 0}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_changes_before_it_is_undone(steps: int) -> None:
    own = Average()
    backup = ExtraBackup(own)
    for number in range(steps):
        backup.take()
        own.update(number)
        backup.on_optimizer_step()
    before = own.mean.clone()
    backup.take()
    own.update(7)
    own.rows[0].add_(1) if steps == 0 else None
    assert backup.restore()
    assert torch.equal(own.mean, before)
    assert torch.equal(own.rows[0], torch.zeros(2))


def test_a_first_change_before_it_that_is_undone_is_known_to_be_lost() -> None:
    own = Average()
    backup = ExtraBackup(own)
    whole_step(backup, own, 1)
    backup.take()
    own.update(2)
    assert not backup.restore()


def test_with_all_tensors_any_change_is_undone() -> None:
    own = Average()
    backup = ExtraBackup(own)
    whole_step(backup, own, 1)
    before = own.mean.clone()
    backup.take(all_tensors=True)
    backup.on_optimizer_step()
    own.update(2)
    assert backup.restore()
    assert torch.equal(own.mean, before)


def test_a_state_made_anew_at_each_call_is_copied() -> None:
    class Fresh(Average):
        def state_dict(self) -> dict[str, Any]:
            return {"mean": self.mean.clone(), "rows": self.rows}

    own = Fresh()
    backup = ExtraBackup(own)
    whole_step(backup, own, 1)
    before = own.mean.clone()
    backup.take()
    own.update(2)
    assert backup.restore()
    assert torch.equal(own.mean, before)


@pytest.mark.parametrize("updates", [True, False])
def test_a_step_cut_off_before_the_update_gives_way_to_one_with_it(updates: bool) -> None:
    """Both have counted the step; the state with the update is the newer one."""
    run, own = Run(), Average()
    training = TrainState(run.model, run.optimizer, None, own, None, None)
    training.done, training.membership = 0, MEMBERSHIP
    for _ in range(2):
        training.begin()
        run.train(1)
        own.update(1)
        training.count()
    training.begin()
    run.train(1)
    if updates:
        own.update(1)
    training.count(is_cut_off=True)
    assert training.progress == (3, MEMBERSHIP if updates else BEGINNING)
