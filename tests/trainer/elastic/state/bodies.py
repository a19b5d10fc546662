"""Bodies of steps as users write them, which may be cut off at each `yield`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ddpjob_trainer.elastic.state.train_state import TrainState
from trainer.runs import Counter


class Script:
    """A script with its models and optimizers; `body` is what it does in one step."""

    optimizers: list[torch.optim.Optimizer]

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.ModuleDict(
            {
                "g": torch.nn.Linear(3, 4),
                "d": torch.nn.Linear(4, 1),
                "norm": torch.nn.BatchNorm1d(4),
            }
        )
        self.optimizers = [
            torch.optim.Adam([*self.model["g"].parameters(), *self.model["norm"].parameters()]),
            torch.optim.SGD(self.model["d"].parameters(), lr=0.01, momentum=0.9),
        ]

    def inputs(self, step: int) -> torch.Tensor:
        return torch.randn(8, 3, generator=torch.Generator().manual_seed(step))

    def loss(self, step: int) -> torch.Tensor:
        hidden = self.model["norm"](self.model["g"](self.inputs(step)))
        total: torch.Tensor = (self.model["d"](hidden) - 1).square().mean()
        return total

    def body(self, step: int) -> Iterator[None]:
        raise NotImplementedError


class Plain(Script):
    """One optimizer, one step."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = [torch.optim.Adam(self.model.parameters(), lr=0.01)]

    def body(self, step: int) -> Iterator[None]:
        yield
        self.optimizers[0].zero_grad()
        self.loss(step).backward()
        yield
        self.optimizers[0].step()
        yield


class Gan(Script):
    """Two optimizers, one after the other."""

    def body(self, step: int) -> Iterator[None]:
        generator, critic = self.optimizers
        critic.zero_grad()
        self.loss(step).backward()
        yield
        critic.step()
        yield
        generator.zero_grad()
        self.loss(step).neg().backward()
        yield
        if step % 2:
            generator.step()
        yield


class Clipped(Plain):
    """Weights clipped through `.data`, as WGAN does, after another exchange."""

    def body(self, step: int) -> Iterator[None]:
        yield from super().body(step)
        for parameter in self.model.parameters():
            parameter.data.clamp_(-0.3, 0.3)
        yield


class TwoSteps(Plain):
    """Two steps of one optimizer."""

    def body(self, step: int) -> Iterator[None]:
        yield from super().body(step)
        yield from super().body(step + 100)


class Sharpness(Plain):
    """SAM: gradients at weights that are moved and put back."""

    def body(self, step: int) -> Iterator[None]:
        self.loss(step).backward()
        yield
        moves = [0.05 * each.grad for each in self.model.parameters() if each.grad is not None]
        with torch.no_grad():
            for parameter, move in zip(self.model.parameters(), moves, strict=True):
                parameter.add_(move)
        self.optimizers[0].zero_grad()
        self.loss(step).backward()
        yield
        with torch.no_grad():
            for parameter, move in zip(self.model.parameters(), moves, strict=True):
                parameter.sub_(move)
        self.optimizers[0].step()
        yield


class ByHand(Plain):
    """No optimizer's step at all."""

    def body(self, step: int) -> Iterator[None]:
        self.loss(step).backward()
        yield
        with torch.no_grad():
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-0.01)
                parameter.grad = None
                yield


class Schedule(Plain):
    """A learning rate that the body sets from its last value."""

    def body(self, step: int) -> Iterator[None]:
        self.optimizers[0].param_groups[0]["lr"] *= 0.9
        yield from super().body(step)


class CutOffError(Exception):
    """A collective broke."""


class Closures(Plain):
    """LBFGS: several times backward inside of the optimizer's step."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = [torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=4)]
        self.breaks_at = -1

    def body(self, step: int) -> Iterator[None]:
        calls = itertools.count()

        def closure() -> torch.Tensor:
            if next(calls) == self.breaks_at:
                raise CutOffError
            self.optimizers[0].zero_grad()
            loss = self.loss(step)
            loss.backward()
            return loss

        yield
        self.optimizers[0].step(closure)  # type: ignore[arg-type]
        yield


class Training:
    """The training state of a script, and its steps."""

    def __init__(self, make: Callable[[], Script], scaler: Any = None) -> None:
        self.script, self.own = make(), Counter()
        self.state = TrainState(
            self.script.model, self.script.optimizers, None, self.own, None, scaler
        )
        self.state.done = 0

    def step(self, cut_at: int | None = None) -> None:
        """Do a step; `cut_at`: it breaks at that `yield`."""
        assert self.state.done is not None
        self.state.begin()
        self.own.value += 1
        try:
            for number, _ in enumerate(self.script.body(self.state.done)):
                if number == cut_at:
                    raise CutOffError
        except CutOffError:
            if not self.state.is_applied:
                self.state.rollback()
                return
        self.state.count()

    def values(self) -> Any:
        """All that has to be equal."""
        optimizers = [each.state_dict() for each in self.script.optimizers]
        return self.script.model.state_dict(), optimizers, self.own.value


def points_of(make: Callable[[], Script]) -> int:
    """The number of points at which the body can be cut off."""
    training = Training(make)
    training.state.begin()
    return len([*training.script.body(0)])
