"""An evaluation between two steps, on all ranks or on some of them.

Its collectives may break, as those of a step may. The evaluation is then skipped, and training
continues: the other ranks may have finished theirs, so it cannot be repeated.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from ddpjob_trainer.elastic.ddp_model import ElasticModel
    from ddpjob_trainer.elastic.group.group_breaks import GroupBreaks


class Evaluation:
    """One evaluation, in `with loop.evaluate() as evaluation:`."""

    def __init__(self, model: ElasticModel, breaks: GroupBreaks) -> None:
        self._model = model
        self._breaks = breaks
        self._modes: list[tuple[torch.nn.Module, bool]] = []
        self._contexts = contextlib.ExitStack()
        self.done = False  # False after the block if a change of the workers broke a collective

    def __enter__(self) -> Self:
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
        if error is None:
            self.done = True
        elif not self._breaks.is_break(error):
            return False
        else:
            self._breaks.await_assignment(error)
        return True
