"""Gradients that a body leaves without a step: no optimizer may use their sums over bodies.

A change of the membership drops gradients, and a process that joins has none. So a body begins
without the gradients of steps that are done. A step that would use other ones is refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch
    from torch.utils.hooks import RemovableHandle


class LeftoverGradients:
    """The gradients that optimizers find at the begin of a body."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._used: list[torch.optim.Optimizer] = []
        self._handles: list[RemovableHandle] = []
        self._left: set[torch.nn.Parameter] = set()  # the script has not reset these gradients yet
        self._added: set[torch.nn.Parameter] = set()  # of these, backward has added to them
        self._step = 0

    @property
    def are_watched(self) -> bool:
        """True if gradients without a step are left."""
        return bool(self._left)

    def drop_used(self) -> None:
        """Drop the gradients of the steps that are done."""
        for optimizer in self._used:
            for parameter in _parameters(optimizer):
                parameter.grad = None
        self._used = []

    def settle(self, step: int, stepped: Collection[torch.optim.Optimizer]) -> None:
        """Watch the gradients of the optimizers that did not step in the body of this step."""
        self._used = [each for each in self._optimizers if each in stepped]
        if len(self._used) == len(self._optimizers):
            self.forget()
            return
        used = {each for optimizer in self._used for each in _parameters(optimizer)}
        every = {each for optimizer in self._optimizers for each in _parameters(optimizer)}
        left = {each for each in every - used if each.grad is not None and each.requires_grad}
        added = self._added & left
        self.forget()
        self._left, self._added, self._step = left, added, step
        self._handles = [each.register_hook(partial(self._on_gradient, each)) for each in left]

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise RuntimeError if the step of this optimizer would use gradients of earlier bodies."""
        if self._added and not self._added.isdisjoint(_parameters(optimizer)):
            raise RuntimeError(
                f"optimizer.step() would use gradients of step {self._step} and of the next one "
                "together: a change of the workers between them would lose the first ones. To train on "
                "n batches per step, use Loop(..., accumulate=n), or a larger batch with "
                "ElasticBatchSampler(..., max_samples_per_rank=). If the body leaves out a step, call "
                "zero_grad() of each optimizer at the begin of each body."
            )

    def forget(self) -> None:
        """End the watch."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._left, self._added = set(), set()

    def _on_gradient(self, parameter: torch.nn.Parameter, _: torch.Tensor) -> None:
        """Note whether backward is about to add to a gradient of an earlier body."""
        left = parameter.grad
        if parameter not in self._left:
            return
        if left is not None and (left.is_sparse or bool(left.any())):
            self._added.add(parameter)
        else:
            self._left.discard(parameter)
            self._added.discard(parameter)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"]]
