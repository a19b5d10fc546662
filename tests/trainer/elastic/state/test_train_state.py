"""The state of training in one process: when a step counts, and how it comes into other hands."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.elastic.state import train_state as training_module
from ddpjob_trainer.elastic.state.train_state import TrainState
from trainer.runs import Counter, Run, assert_same

MEMBERSHIP = MembershipId(1, 1, 7)


class Trained:
    """A model after some steps, in the membership."""

    def __init__(self, steps: int = 0) -> None:
        self.run, self.own = Run(), Counter()
        self.training = TrainState(self.run.model, self.run.optimizer, None, self.own, None, None)
        self.training.done, self.training.membership = 0, MEMBERSHIP
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        self.training.begin()
        self.own.value += 1
        self.run.train(1)
        self.training.count()

    def forward(self) -> None:
        """A step's beginning: buffers, random states and the user's own state have changed."""
        self.own.value += 1
        self.run.model(torch.randn(8, 3)).square().sum().backward()

    def leave(self, path: Path) -> int | None:
        """From another thread, that ends."""
        left: list[int | None] = []
        thread = threading.Thread(target=lambda: left.append(self.training.dump(path)))
        thread.start()
        thread.join()
        return left[0]

    def moments(self) -> list[torch.Tensor]:
        state = self.run.optimizer.state_dict()["state"]
        return [value for each in state.values() for value in each.values()]


def test_a_step_counts_when_the_optimizer_has_stepped() -> None:
    trained = Trained()
    attempt = trained.training.begin()
    before = attempt.applied
    trained.run.train(1)
    assert (before, attempt.applied) == (False, True)
    trained.training.count()
    another = trained.training.begin()
    trained.training.end()
    trained.run.train(1)
    assert not another.applied, "what comes after its end is none of its business"


def test_the_next_process_resumes_from_the_last_step_that_counts(tmp_path: Path) -> None:
    stuck = Trained(steps=3)
    before, moments = stuck.run.weights(), [each.clone() for each in stuck.moments()]
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    torch.manual_seed(5)
    stuck.training.begin()
    stuck.forward()
    assert stuck.leave(tmp_path / "left") == 3
    torch.manual_seed(6)
    follower = Trained()
    follower.training.restore_dump(tmp_path / "left")
    assert follower.training.progress == (3, MEMBERSHIP)
    assert_same(before, follower.run.weights())
    assert all(map(torch.equal, moments, follower.moments()))
    assert len(moments) == len(follower.moments()) > 0
    assert follower.own.value == 3
    assert torch.rand(3).tolist() == expected
    assert not (tmp_path / "left").exists(), (
        "a process that fails with it is followed by one without"
    )


def test_a_step_that_the_optimizer_has_done_is_not_lost(tmp_path: Path) -> None:
    stuck = Trained(steps=3)
    stuck.training.begin()
    stuck.own.value += 1
    stuck.run.train(1)
    assert stuck.leave(tmp_path / "left") == 4
    follower = Trained()
    follower.training.restore_dump(tmp_path / "left")
    assert_same(stuck.run.weights(), follower.run.weights())
    assert follower.own.value == 4


def test_an_evaluation_that_is_cut_off_does_not_last() -> None:
    """And a part of the model that evaluates in each step continues to do so."""
    trained = Trained(steps=1)
    model, first = trained.run.model, trained.run.first
    trained.training.begin()
    model.eval()
    trained.training.rollback()
    assert model.training
    assert first.training
    trained.training.begin()
    first.eval()
    trained.run.train(1)
    model.eval()
    trained.training.count(is_cut_off=True)
    assert model.training
    assert not first.training


def test_nothing_is_left_amid_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_module, "CHANGE_SECONDS", 0.01)
    stuck = Trained(steps=1)
    left: list[int | None] = []
    parameter = stuck.run.optimizer.param_groups[0]["params"][0]

    def half(*_: object) -> None:
        parameter.data.zero_()
        left.append(stuck.leave(tmp_path / "left"))
        raise RuntimeError("and no end")

    stuck.run.optimizer.register_step_pre_hook(half)
    stuck.training.begin()
    stuck.forward()
    with pytest.raises(RuntimeError, match="and no end"):
        stuck.run.optimizer.step()
    assert left == [None]
    assert not (tmp_path / "left").exists()
    stuck.training.end()
    assert stuck.leave(tmp_path / "left") == 1, "the change is over"


def test_what_was_left_is_changed_no_more(tmp_path: Path) -> None:
    stuck = Trained(steps=1)
    stuck.training.begin()
    assert stuck.leave(tmp_path / "left") == 1
    assert not stuck.training.changing.acquire(blocking=False)


def test_without_a_state_none_is_left(tmp_path: Path) -> None:
    new = Trained()
    new.training.done = None
    assert new.leave(tmp_path / "left") is None
    new.training.restore_dump(tmp_path / "left")
    assert new.training.progress is None
