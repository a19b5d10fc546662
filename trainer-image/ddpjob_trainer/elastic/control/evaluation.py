"""An evaluation between two steps, on all ranks or on some of them.

Its collectives may break, as those of a step may. The evaluation is then skipped, and training
continues: the other ranks may have finished theirs, so it cannot be repeated. A script may swap
other weights in meanwhile, as an average; training never continues with those.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from ddpjob_trainer.elastic.state.checksum import lazy_checksum
from ddpjob_trainer.snapshots.replicas import read_sums

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ddpjob_trainer.elastic.control.between_steps import BetweenSteps
    from ddpjob_trainer.elastic.ddp_model import ElasticModel
    from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks
    from ddpjob_trainer.elastic.state.train_state import TrainState

SWAPPED = (
    "an evaluation was cut off while it had other weights in the model. Swap them back in `finally:`, "
    "or evaluate another module"
)


class Evaluation:
    """One evaluation, in `with loop.evaluate() as evaluation:`."""

    def __init__(
        self,
        model: ElasticModel,
        breaks: GroupBreaks,
        training: TrainState,
        between: BetweenSteps,
    ) -> None:
        self._model = model
        self._breaks = breaks
        self._training = training
        self._between = between
        self._weights: HeldWeights | None = None
        self._modes: list[tuple[torch.nn.Module, bool]] = []
        self._contexts = contextlib.ExitStack()
        self.done = False  # False after the block if a change of the workers broke a collective

    def __enter__(self) -> Self:
        self._between.end()
        self._weights = HeldWeights(self._model.module)
        self._modes = [(each, each.training) for each in self._model.module.modules()]
        self._model.module.eval()
        self._contexts.enter_context(torch.no_grad())
        self._contexts.enter_context(self._model.alone())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        self._contexts.close()
        for module, mode in self._modes:
            module.training = mode
        weights, self._weights = self._weights, None
        if error is None:
            self.done = True
        elif not self._breaks.is_break(error):
            return False
        else:
            if weights is not None and not weights.put_back():
                self._training.spoil(SWAPPED)
            self._breaks.await_assignment(error)
        self._between.begin()
        return True


class HeldWeights:
    """The parameters of a model at one moment, without a copy of them."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = [each for each in module.parameters() if each.layout == torch.strided]
        self._memory = [each.data for each in self._tensors]
        self._sums = self._checksums()

    def put_back(self) -> bool:
        """Put back the memory that a script has replaced; return whether its content is the same."""
        for tensor, memory in zip(self._tensors, self._memory, strict=True):
            if tensor.data_ptr() != memory.data_ptr():
                tensor.data = memory
        return self._sums == self._checksums()

    def _checksums(self) -> dict[str, int]:
        return read_sums({f"{i}": lazy_checksum(each) for i, each in enumerate(self._tensors)})
