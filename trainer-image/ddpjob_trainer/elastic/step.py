"""One step of a `Loop`, as the script sees it: its number, its samples, its begin and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

from ddpjob_trainer.elastic.control.schedule import ends_epoch, is_last_of_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import torch

    from ddpjob_trainer.data.loss_weights import Count
    from ddpjob_trainer.elastic.loop import Loop


class Step:
    """One step of the loop, done in `with step:`; the loop repeats a step that broke."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self.was_tried = False  # True once the body has run in `with step:`
        self._epoch = 0
        self.number = number  # steps done before
        self.rank = distributed.get_rank()  # of this process, from 0; may change between steps
        self.world_size = distributed.get_world_size()  # processes of the membership
        self.metrics: dict[str, float] = {}
        self.done = False  # False after `with step:` if the step broke and will be repeated

    def parts(self) -> Iterator[Any]:
        """Yield this rank's parts of the batch: mostly one, more if memory is short.

        A part is what the loader's collate_fn makes, such as a pair of tensors; their first
        dimension is the number of samples, which differs between ranks and steps. Raise
        RuntimeError if the loop has no loader.
        """
        return self._loop.feed.parts()

    def backward(self, loss: torch.Tensor, count: Count | None = None) -> None:
        """Run backward on the current part's mean loss; gradients add up to the whole batch.

        `loss` is a tensor with one element, and `count` is the number that the loss is a mean over, if that is not the number of samples:
        the tokens of a language model that are not padding. A sum is a mean times its count.
        """
        self._loop.feed.backward(loss, count)

    def report(self, **metrics: float) -> None:
        """Add numbers to this step's progress report.

        `metrics` are finite numbers or tensors with one element, for at most 64 names.
        """
        self.metrics.update(metrics)

    def __enter__(self) -> Self:
        self.was_tried = True
        self._loop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        try:
            return self._loop.end(self, error)
        finally:
            self._loop.set_between_steps(True)

    @property
    def epoch(self) -> int:
        """The number of the step's epoch, from 0. Raises RuntimeError if the loop has no loader."""
        return self._epoch if self.done else self._loop.feed.source.epoch

    @property
    def ends_epoch(self) -> bool:
        """True if the step is the last one of its epoch; with a Stream, ask after the step.

        Raises RuntimeError if the loop has no loader.
        """
        source = self._loop.feed.source
        return ends_epoch(source, self._epoch) if self.done else is_last_of_epoch(source)

    def count(self, epoch: int) -> None:
        """Record that the step, of this epoch, has counted."""
        self._epoch, self.done = epoch, True
