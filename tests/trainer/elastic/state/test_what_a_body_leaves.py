"""The rests of bodies: gradients, a scaler's state, buffers, and tensors outside of state_dict()."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ddpjob_trainer.elastic.state.train_state import TrainState
from trainer.elastic.state import bodies
from trainer.elastic.state.bodies import Training


class Accumulating(bodies.Plain):
    """One optimizer's step for every second body."""

    resets = False

    def body(self, step: int) -> Iterator[None]:
        if self.resets:
            self.optimizers[0].zero_grad()
        self.loss(step).backward()
        yield
        if step % 2:
            self.optimizers[0].step()
            self.optimizers[0].zero_grad()


class LeavingOut(Accumulating):
    """A body without a step, as after gradients that are not finite."""

    resets = True


def test_gradients_that_add_up_over_bodies_are_refused_at_once() -> None:
    training = Training(Accumulating)
    training.step()
    training.state.drop_gradients()  # as after a planned change
    with pytest.raises(
        RuntimeError, match=r"would use gradients of step 0 and of the next one.*accumulate=n"
    ):
        training.step()


def test_a_body_may_leave_out_its_step() -> None:
    training = Training(LeavingOut)
    for _ in range(4):
        training.step()
    assert training.state.done == 4


def test_a_body_begins_without_the_gradients_of_the_last_one() -> None:
    """A change between two bodies makes no difference."""

    class Forgetful(bodies.Plain):
        def body(self, step: int) -> Iterator[None]:
            yield
            self.loss(step).backward()
            self.optimizers[0].step()

    training, other = Training(Forgetful), Training(Forgetful)
    for _ in range(3):
        training.step()
        other.step()
        other.state.drop_gradients()
    for mine, others in zip(
        training.script.model.parameters(), other.script.model.parameters(), strict=True
    ):
        assert torch.equal(mine, others)


class Scaled(bodies.Plain):
    """With unscaled gradients, so that they can be clipped."""

    is_infinite = False

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def body(self, step: int) -> Iterator[None]:
        self.optimizers[0].zero_grad()
        factor = torch.inf if self.is_infinite else 1.0
        self.scaler.scale(self.loss(step) * factor).backward()
        yield
        self.scaler.unscale_(self.optimizers[0])
        yield
        self.scaler.step(self.optimizers[0])
        self.scaler.update()
        yield


@pytest.mark.parametrize("point", [0, 1, 2])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_scaler_is_as_before_a_cut_off_step(point: int, steps: int) -> None:
    training, scaler = scaled()
    for _ in range(steps):
        training.step()
    assert isinstance(training.script, Scaled)
    training.script.is_infinite = True
    training.step(cut_at=point)
    assert training.state.done == steps
    assert scaler.get_scale() == 4.0
    training.step()
    assert scaler.get_scale() == 2.0
    training.step()  # after a step that the scaler left out, which is not a leftover
    assert training.state.done == steps + 2


def scaled() -> tuple[Training, torch.amp.GradScaler]:
    script = Scaled()
    return Training(lambda: script, script.scaler), script.scaler


class Caching(torch.nn.Module):
    """Buffers of all sorts, which forward changes."""

    seen: torch.Tensor
    cache: torch.Tensor
    mean: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.frozen = torch.nn.Parameter(torch.rand(2), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("cache", torch.arange(2.0), persistent=False)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("noise", torch.rand(2), persistent=False)
        self.length = 2

    def forward(self, length: int) -> torch.Tensor:
        self.seen = torch.cat([self.seen, torch.ones(1)])
        self.mean = self.mean * 0.9 + 0.1
        if length > self.length:
            self.length = length
            self.register_buffer("cache", torch.arange(float(length)), persistent=False)
        if "count" not in self._buffers:
            self.register_buffer("count", torch.zeros(()))
        self.count += 1
        return (self.weight * self.cache[:length].sum()).sum()

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if name != "frozen"}

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return super().load_state_dict({"frozen": self.frozen, **state}, strict, assign)


def caching() -> tuple[Caching, TrainState]:
    model = Caching()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    state = TrainState(model, optimizer, None, None, None, None)
    state.done = 0
    return model, state


def test_buffers_that_forward_replaces_or_registers_are_restored() -> None:
    model, state = caching()
    for _ in range(2):
        state.begin()
        model(5).backward()
        state.rollback()
        assert (model.seen.tolist(), model.mean.tolist()) == ([0.0], [0.0, 0.0])
        assert not hasattr(model, "count")
        assert len(model.cache) == model.length == 5, "the cache stays as the model knows it"
    assert state.done == 0


def test_what_state_dict_leaves_out_reaches_who_joins() -> None:
    (giver, given), (taker, taken) = caching(), caching()
    giver(5)
    taker(2)
    assert not torch.equal(giver.frozen, taker.frozen)
    giver.frozen.requires_grad_(True)
    giver.weight.requires_grad_(False)
    giver.eval()
    taken.restore(given.collect())
    for name in ("frozen", "noise", "cache"):
        assert torch.equal(getattr(giver, name), getattr(taker, name)), name
    assert (taker.frozen.requires_grad, taker.weight.requires_grad) == (True, False)
    assert not taker.training
