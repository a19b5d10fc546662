"""The memory for a state that another process sends: the model's own tensors.

A process without a state needs no second copy of the weights, so it may join where training fits. If
the transfer breaks off, the model has a part of that state, and training does not begin with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.snapshots.own_memory import OwnMemory
from ddpjob_trainer.tensors import training_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_trainer.elastic.state.train_state import TrainState
    from ddpjob_trainer.tensors.safetensors_reader import TensorSpec
    from ddpjob_trainer.transfer.broadcast import ChooseMemory

BROKEN_OFF = "the transfer of a state to this process broke off"


def memory_of(training: TrainState) -> ChooseMemory:
    """Return a function that chooses the model's own tensors; from then on their content is lost."""
    own = OwnMemory(training.model, training.parts)

    def choose(nodes: Mapping[str, Any], specs: Sequence[TensorSpec]) -> Mapping[str, torch.Tensor]:
        found = own.choose(nodes, specs)
        if found:
            training.spoil(BROKEN_OFF)
        return found

    return choose


def restore(training: TrainState, found: dict[str, Any]) -> None:
    """Restore a state that another process sent. Raise StateMismatchError.

    A tensor of another type is a mismatch: torch would convert it, and the replicas would differ.
    """
    own = training_state.collect(training.model, None)["model"]
    for name, value in found["model"].items():
        mine = own.get(name)
        if not (isinstance(mine, torch.Tensor) and isinstance(value, torch.Tensor)):
            continue
        if mine.dtype != value.dtype:
            raise training_state.StateMismatchError(
                f"`{name}` is {mine.dtype} here, and {value.dtype} in the processes that train. Make the "
                "model of one type on all workers"
            )
    training.spoil(BROKEN_OFF)
    training.restore(found)
