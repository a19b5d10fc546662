"""The optimizers and schedulers that train, and that the script does not save.

After a restart they would start from nothing beside a model that does not. torch calls a hook after each
step of any optimizer. Optimizers count as saved once any save() or load() of this process was given
them. With `extra`, the script may save them there.
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.tensors import training_state, wrappers

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMEDY = "Give load() and save() all of them: optimizer=[first, second]"

_log = logging.getLogger("ddpjob")
_given: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_watching: weakref.WeakSet[UnsavedParts] = weakref.WeakSet()


class UnsavedParts:
    """The parts of a training run that no save() or load() of this process was given so far."""

    def __init__(self) -> None:
        """Notice each optimizer that steps from now on."""
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._reported: set[str] = set()
        _add_hook()
        _watching.add(self)

    def on_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record that this optimizer has stepped."""
        self._stepped.add(optimizer)

    def give(self, optimizer: Any) -> None:
        """Record the optimizers that a save() or load() was given."""
        _given.update(_inside(optimizer))

    def check(self, model: torch.nn.Module, extra: Any, parts: dict[str, Any]) -> None:
        """Raise SnapshotError if another optimizer has trained `model` since the last check.

        Warn once if one trains other parameters, or if no scheduler was given and there is one.
        """
        stepped, self._stepped = self._stepped, weakref.WeakSet()
        if extra is not None:
            return
        parameters = set(map(id, model.parameters()))
        for each in stepped:
            if each in _given or not each.state:
                continue
            kind = type(each).__name__
            owned = sum(id(p) in parameters for group in each.param_groups for p in group["params"])
            if owned:
                raise SnapshotError(
                    f"an optimizer ({kind}) of {owned} parameters of the model has stepped, and save() "
                    f"was not given it: a restart would lose its state. {_REMEDY}"
                )
            self._warn(
                f"an optimizer ({kind}) trains parameters that are in no snapshot: a restart loses "
                "them. Save one module with all models, such as "
                f"nn.ModuleDict. {_REMEDY}"
            )
        if parts["scheduler"] is None and any(
            hasattr(each.step, "_wrapped_by_lr_sched")
            for each in training_state.optimizers_of(parts["optimizer"])
        ):
            self._warn(
                "the optimizer has a scheduler, and save() was not given it: a restart loses its "
                "position. Give load() and save() the scheduler: scheduler=scheduler"
            )

    def _warn(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            _log.warning("%s", text)


def _inside(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers, and those that they wrap, as SAM and ZeroRedundancyOptimizer do."""
    inner = wrappers.unwrap(optimizer)
    for each in inner if isinstance(inner, list) else [inner]:
        for value in (each, *vars(each).values()) if hasattr(each, "__dict__") else ():
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, torch.optim.Optimizer):
                    yield one


@functools.cache
def _add_hook() -> None:
    def on_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for each in _watching:
            each.on_step(optimizer)

    register_optimizer_step_post_hook(on_step)
