"""Collects the state of a training run into one tree, and restores it in place.

May use torch's objects. May not: know of files or ranks.
"""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class StateMismatchError(Exception):
    """The model, optimizer, scheduler or data of a state differs from the script's."""


def collect(model: torch.nn.Module, extra: Any, **parts: Any) -> dict[str, Any]:
    """Return the state of the model and of all parts that are not None, sharing their memory.

    `parts`, such as the optimizer, have state_dict and load_state_dict; `extra` is a value.
    """
    weights = _unwrapped(model).state_dict()
    given = {name: part for name, part in parts.items() if part is not None}
    return {
        "model": weights,
        "versions": getattr(weights, "_metadata", None),  # of modules, for their own migrations
        **{name: part.state_dict() for name, part in given.items()},
        "types": {name: type(part).__name__ for name, part in given.items()},
        "extra": extra,
    }


def restore(state: dict[str, Any], model: torch.nn.Module, **parts: Any) -> None:
    """Restore the result of collect() in place, without parts that are None.

    Raises StateMismatchError.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    for name, part in given.items():
        was, now = state["types"].get(name, "none"), type(part).__name__
        if was != now:
            raise StateMismatchError(f"its {name} was {was}, the script's is {now}")
    weights = collections.OrderedDict(state["model"])
    if state["versions"] is not None:
        weights._metadata = state["versions"]  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        _unwrapped(model).load_state_dict(weights)
        for name, part in given.items():
            part.load_state_dict(state[name])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise StateMismatchError(str(error)) from error


def changed_by_step(model: torch.nn.Module, optimizer: Any) -> set[int]:
    """Return the addresses of the storages that only a step of the optimizer changes."""
    return {tensor.untyped_storage().data_ptr() for tensor in _optimized(model, optimizer)}


def is_on_all(model: torch.nn.Module, optimizer: Any) -> int:
    """Return the size in bytes of the tensors that the optimizer changes, equal on every rank."""
    return sum(tensor.nbytes for tensor in _optimized(model, optimizer))


def _optimized(model: torch.nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters and the optimizer's state; no tensors if it is not torch's."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.parameters(), *(value for value in values if torch.is_tensor(value))]


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model
