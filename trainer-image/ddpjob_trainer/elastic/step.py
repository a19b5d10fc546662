"""One step of a `Loop`, as the script sees it: its number, its samples, its begin and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import torch

    from ddpjob_trainer.elastic.loop import Loop
    from ddpjob_trainer.elastic.state.step_rollback import StepRollback


class Step:
    """One step of the loop, done in `with step:`; the loop repeats a step that broke."""

    def __init__(self, loop: Loop, number: int) -> None:
        self._loop = loop
        self._attempt: StepRollback | None = None
        self.number = number  # steps done before
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()
        self.metrics: dict[str, float] = {}
        self.done = False  # False after `with step:` if the step broke and will be repeated

    def parts(self) -> Iterator[Any]:
        """Yield this rank's parts of the batch: mostly one, more if memory is short."""
        return self._loop.feed.parts()

    def backward(self, loss: torch.Tensor) -> None:
        """Run backward on the current part's mean loss; gradients add up to the whole batch."""
        self._loop.feed.backward(loss)

    def report(self, **metrics: float) -> None:
        """Add numbers to this step's progress report."""
        self.metrics.update(metrics)

    def __enter__(self) -> Self:
        self._attempt = self._loop.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        assert self._attempt is not None
        return self._loop.end(self, self._attempt, error)

    @property
    def was_tried(self) -> bool:
        """True if the body ran in `with step:`."""
        return self._attempt is not None
