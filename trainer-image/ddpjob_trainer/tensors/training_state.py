"""What belongs to a training run: gathered into one tree to be saved, and put back in place.

Knows the objects of torch, and neither files nor ranks.
"""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class StateMismatchError(Exception):
    """A state was saved by a script whose model, optimizer, scheduler or data was another."""


def collect(model: torch.nn.Module, extra: Any, **parts: Any) -> dict[str, Any]:
    """The state of all that is given and not None, sharing memory with it.

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
    """Inverse of collect(), in place; what is None is left out. Raises StateMismatchError."""
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
    """Storages, by address, that stay as they are until the optimizer steps again."""
    return {tensor.untyped_storage().data_ptr() for tensor in _optimized(model, optimizer)}


def is_on_all(model: torch.nn.Module, optimizer: Any) -> int:
    """Bytes of what the optimizer changes, which is the same on every rank."""
    return sum(tensor.nbytes for tensor in _optimized(model, optimizer))


def _optimized(model: torch.nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """Parameters and the optimizer's state; nothing if it is none of torch's."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [*model.parameters(), *(value for value in values if torch.is_tensor(value))]


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model
