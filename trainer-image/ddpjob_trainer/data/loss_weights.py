"""The weights of the losses of one batch, so that the gradient is that of the whole batch's mean.

A loss that is a mean over samples weighs its samples: every rank knows all shares. A loss that is a
mean over tokens weighs its tokens, and only its own rank knows their number. So the ranks add up
their counts, in one small all-reduce before the backward pass that exchanges the gradients. Until
then, earlier parts of a share weigh in proportion to the first part. In deterministic mode, where
gradients are summed up shard by shard, one division at the end does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from ddpjob_trainer import collectives

if TYPE_CHECKING:
    from collections.abc import Iterable

    Count = int | float | torch.Tensor


class LossWeights:
    """The weights of one rank's losses, part by part."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [*parameters]
        self.begin()

    def begin(self) -> None:
        """Begin a batch."""
        self._weight, self._is_last, self._is_sum = 1.0, True, False
        # Counts of this rank's parts so far.
        self._total = torch.zeros((), dtype=torch.float64, device="cpu")
        self._first: torch.Tensor | None = None  # count of the first of several parts
        self._by_count: bool | None = None  # None: no loss so far
        self._has_count = False  # the current part has a loss with a count

    def begin_part(self, weight: float, *, is_last: bool, is_sum: bool = False) -> None:
        """Begin a part of the share: `weight` is its part of the batch's samples.

        `is_sum`: gradients are summed up, and end_sum() follows. Raise what check() raises.
        """
        self.check()
        self._weight, self._is_last, self._is_sum = weight, is_last, is_sum
        self._has_count = False

    def backward(self, loss: torch.Tensor, count: Count | None = None) -> None:
        """Run backward on the current part's mean loss, times its weight in the batch.

        `count` is the number that the loss is a mean over, if that is not the number of samples.
        Raise RuntimeError if only some losses of a batch have one.
        """
        if self._by_count not in (None, count is not None):
            raise RuntimeError("give backward() a count for every loss of a step, or for none")
        self._by_count = count is not None
        if count is None:
            _run(loss, self._weight)
        else:
            _run(loss, self._counted(_as_tensor(count)))

    def check(self) -> None:
        """Raise RuntimeError if the current part has no count, and an earlier one has."""
        if self._by_count and not self._has_count:
            raise RuntimeError("every part of a step needs its backward(loss, count=...)")

    def end_sum(self) -> None:
        """Divide the gradients, which are sums over all ranks, by the counts if there are any.

        Every rank calls this. Raise RuntimeError if the group breaks.
        """
        both = torch.stack([self._total, torch.ones_like(self._total) * bool(self._by_count)])
        if collectives.world_size() > 1:
            distributed.all_reduce(both)
        if both[1] > 0:
            self._multiply_gradients(1 / both[0].clamp(min=1))

    def _counted(self, count: torch.Tensor) -> torch.Tensor:
        """Return the weight of a loss with a count; make that of earlier parts final."""
        if self._has_count and (self._is_sum or not self._is_last or self._first is not None):
            raise RuntimeError(
                "a share of several parts takes one backward(loss, count=...) per part: add the "
                "losses of a part up"
            )
        self._has_count = True
        own = count if self._weight else torch.zeros_like(count)  # a rank without samples
        if self._is_sum:
            self._total = self._total.to(own.device) + own
            return own
        if not self._is_last:
            if not self._parameters:
                raise RuntimeError("a count needs the model: `with batches.part(model) as part:`")
            self._first = own.clamp(min=1) if self._first is None else self._first
            self._total = self._total.to(own.device) + own
            return own / self._first
        total, world_size = self._total.to(own.device) + own, collectives.world_size()
        if world_size > 1:
            distributed.all_reduce(total)
        total = total.clamp(min=1e-300)  # no counts at all: every weight is 0
        if self._first is not None:
            self._multiply_gradients(self._first * world_size / total)
        return own * world_size / total

    def _multiply_gradients(self, factor: torch.Tensor) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor.to(parameter.grad.device, parameter.grad.dtype))


def _as_tensor(count: Count) -> torch.Tensor:
    device = collectives.device() if collectives.is_initialized() else torch.device("cpu")
    return torch.as_tensor(count, device=device).detach().to(torch.float64)


def _run(loss: torch.Tensor, weight: float | torch.Tensor) -> None:
    if isinstance(weight, torch.Tensor) and weight.device.type == "cpu":
        weight = float(weight)
    if isinstance(weight, torch.Tensor):  # without a wait for the device
        weight = weight.to(torch.float64 if loss.dtype == torch.float64 else torch.float32)
    elif weight == 1:
        torch.autograd.backward(loss)
        return
    torch.autograd.backward(loss * weight)
