"""Mistakes that must make equivalence fail: of elastic training, each made on purpose.

The first two happen in one step only; the third from the first change on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.step import Step


class Harm:
    """None."""

    def __init__(self, at: int) -> None:
        self._at = at  # step

    def _is_hit(self, step: Step) -> bool:
        return step.number == self._at and step.rank == 0

    def part(self, _: Step, part: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the part of the loader's samples to train on."""
        return part

    def factor(self, _: Step) -> float:
        """By which the loss is multiplied, beside its weight in the batch."""
        return 1.0

    def model(self, model: ElasticModel) -> torch.nn.Module:
        """Return the model that is called."""
        return model


class DroppedSample(Harm):
    """The first process leaves out one sample."""

    def part(self, step: Step, part: list[torch.Tensor]) -> list[torch.Tensor]:
        """All but the last one."""
        return [each[:-1] for each in part] if self._is_hit(step) else part


class DoubledWeight(Harm):
    """The first process's share counts twice."""

    def factor(self, step: Step) -> float:
        """Two, once."""
        return 2.0 if self._is_hit(step) else 1.0


class StaleWrapper(Harm):
    """A DistributedDataParallel that each process makes once and keeps over changes."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self._kept: DistributedDataParallel | None = None

    def model(self, model: ElasticModel) -> torch.nn.Module:
        """The same one at all times."""
        if self._kept is None:
            self._kept = DistributedDataParallel(
                model.module, process_group=Following(), init_sync=False
            )
            exchange = model._exchange  # noqa: SLF001 - or the loop would refuse its first step
            self._kept.register_forward_pre_hook(lambda *_: exchange.expect())
        return self._kept


class Following(distributed.ProcessGroup):
    """A group that is formed again beneath its holders, and still reports its first size.

    So are torch's own after `torch.distributed._reconfigure`, which ddpjob does without.
    """

    def __init__(self) -> None:
        super().__init__(distributed.get_rank(), distributed.get_world_size())

    def allreduce(self, *arguments: Any) -> Any:
        """Reduce in the current group."""
        return self._current.allreduce(*arguments)

    def broadcast(self, *arguments: Any) -> Any:
        """The same."""
        return self._current.broadcast(*arguments)

    @property
    def _current(self) -> distributed.ProcessGroup:
        world = distributed.group.WORLD
        assert world is not None
        return world


HARMS = {"none": Harm, "drop": DroppedSample, "double": DoubledWeight, "stale": StaleWrapper}
