"""Which gradients DistributedDataParallel has exchanged since the step began.

DistributedDataParallel exchanges the gradients of one backward pass: the first one after a forward
pass through the wrapper. Each gradient that a parameter already had goes along. A forward pass that
bypassed the wrapper, or a second backward pass, leaves gradients that belong to this process only.
This module records the order of forward passes and of gradients, and compares them before the
optimizer steps. It does not depend on groups, so one process finds the same mistakes as many do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

BYPASSED = (
    "Call `loop.model(...)`: a call of the model itself, or of `loop.model.module`, exchanges no "
    "gradients. For several models, as of a GAN, pass Loop a torch.nn.ModuleDict, and call each "
    "one as `loop.model['name'](...)`."
)
REPEATED = (
    "Only the first `backward()` after a call of `loop.model(...)` exchanges gradients. A later one, "
    "or one after a call of the model itself, does not: add the losses up and call `backward()` "
    "once, or call `loop.model(...)` before each one."
)
LATER = (
    "In deterministic mode, gradients are exchanged at the end of `for ... in step.parts():`. "
    "Call `backward()` within that loop."
)


class GradientExchange:
    """The record of one model that is wrapped as a whole."""

    def __init__(self, model: nn.Module, *, alone: bool = False, may_repeat: bool = False) -> None:
        """Record the gradients of `model`.

        `alone`: the model is not wrapped, as in deterministic mode. `may_repeat`: DDP expects
        several gradients of a parameter in one backward pass.
        """
        self._model = model
        self._gradients: list[torch.Tensor] = []  # the parameter of each, in order
        self._forwards: list[int] = []  # gradients before each pass through the wrapper
        self._watched: set[int] = set()  # parameters, by id
        self._alone = alone
        self._may_repeat = may_repeat

    def watch(self) -> None:
        """Record the gradients of all parameters that are trained."""
        for parameter in self._model.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                parameter.register_post_accumulate_grad_hook(self._gradients.append)
                self._watched.add(id(parameter))

    def begin(self) -> None:
        """Forget all: a step begins, or all gradients have been exchanged."""
        self._gradients.clear()
        self._forwards.clear()

    @property
    def count(self) -> int:
        """The gradients since the step began."""
        return len(self._gradients)

    def expect(self) -> None:
        """Record a forward pass whose gradients will be exchanged."""
        self._forwards.append(len(self._gradients))

    @property
    def is_open(self) -> bool:
        """True if gradients since the step began, or those of a forward pass, are not exchanged."""
        if not self._forwards:
            return bool(self._gradients)
        return self._forwards[-1] >= len(self._gradients)

    def check(self, stepped: Collection[int]) -> None:
        """Raise RuntimeError if a gradient of these parameters, by id, was not exchanged."""
        repeated, bypassed = self._missing()
        for found, remedy in ((bypassed, LATER if self._alone else BYPASSED), (repeated, REPEATED)):
            if not found:
                continue
            names = [
                name
                for name, parameter in self._model.named_parameters()
                if id(parameter) in found and id(parameter) in stepped and parameter.grad is not None
            ]  # fmt: skip
            if names:
                raise RuntimeError(
                    f"the gradients of {len(names)} parameters, `{names[0]}` first, were not "
                    f"exchanged with the other processes. {remedy}"
                )

    def _missing(self) -> tuple[set[int], set[int]]:
        """Return the parameters, by id, with a gradient too many, and those without an exchange."""
        gradients = [*map(id, self._gradients)]
        begins = [each for each in self._forwards if each < len(gradients)]
        if not begins:
            return set(), set(gradients)
        exchanged = gradients[begins[-1] :]  # with all that the parameters had before
        once = set(exchanged)
        if len(once) == len(exchanged) or self._may_repeat:
            return set(), set()
        return {each for each in once if exchanged.count(each) > 1}, set()
