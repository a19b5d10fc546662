"""Finds the changes of the weights in the body of one step: by optimizers' steps, by other code.

torch counts the changes of a tensor in its `_version`. Changes through `.data` do not count there:
its memory may be another one, and `exact` compares checksums, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpjob_trainer.elastic.state.checksum import checksum

if TYPE_CHECKING:
    from collections.abc import Sequence


class WeightChanges:
    """The changes of the parameters in one body, from its construction to close()."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        exact: bool,
    ) -> None:
        self._parameters = parameters
        self._optimizers = optimizers
        self._exact = exact
        self.stepped: list[torch.optim.Optimizer] = []  # once for each step
        self.by_other_code = False
        self._depth = 0  # of optimizers' steps: one optimizer may call another one's step
        self._mark = self._look()
        self._states = self._look_at_states()
        self._handle = register_optimizer_step_pre_hook(self._check_known)

    def before_step(self) -> None:
        """Record that the step of a known optimizer begins."""
        if self._depth == 0:
            self.compare()
        self._depth += 1

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record that the step has ended."""
        self._depth -= 1
        if self._depth == 0:
            self.stepped.append(optimizer)
            self._mark = self._look()

    def compare(self) -> None:
        """Note whether other code than an optimizer's step has changed the parameters."""
        mark = self._look()
        self.by_other_code = self.by_other_code or mark != self._mark
        self._mark = mark

    @property
    def is_none(self) -> bool:
        """True if neither a parameter nor an optimizer's state has changed."""
        self.compare()
        return not (self.stepped or self.by_other_code or self._states != self._look_at_states())

    @property
    def is_one_step(self) -> bool:
        """True if one step of an optimizer has changed the parameters, and nothing else has."""
        self.compare()
        return len(self.stepped) == 1 and not self._depth and not self.by_other_code

    def close(self) -> None:
        """End the watch; the object may be closed again."""
        self._handle.remove()

    def _look(self) -> tuple[int, list[int], tuple[int, ...]]:
        versions = sum(each._version for each in self._parameters)  # noqa: SLF001 - torch's own change counter
        addresses = [each.data_ptr() for each in self._parameters]
        return versions, addresses, tuple(map(checksum, self._parameters)) if self._exact else ()

    def _look_at_states(self) -> int:
        return sum(
            value._version  # noqa: SLF001
            for optimizer in self._optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if type(value) is torch.Tensor  # much quicker than isinstance, and in each step
        )

    def _check_known(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Raise RuntimeError if an optimizer steps that the Loop does not have."""
        if any(optimizer is each for each in self._optimizers):
            return
        mine = set(map(id, self._parameters))
        if any(id(each) in mine for group in optimizer.param_groups for each in group["params"]):
            raise RuntimeError(
                f"a second optimizer ({type(optimizer).__name__}) trains the model, and the Loop does "
                "not have it: its state would be missing on processes that join. Give the Loop all "
                "optimizers: Loop(model, [optimizer_a, optimizer_b], ...). If one optimizer wraps "
                "another one (SAM), give the inner one: Loop(model, optimizer.base_optimizer, ...)."
            )
