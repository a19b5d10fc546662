"""Collects the state of a training run into one tree, and restores it in place.

May use torch's objects. May not: know of files or ranks.
"""

from __future__ import annotations

import collections
from typing import Any

import torch

from ddpjob_trainer.tensors import parameter_names, rng_state, wrappers


class StateMismatchError(Exception):
    """The model, optimizer, scheduler or data of a state differs from the script's."""


def collect(model: torch.nn.Module, extra: Any, **parts: Any) -> dict[str, Any]:
    """Return the state of the model and of all parts that are not None, sharing their memory.

    `parts`, such as the optimizer, have state_dict and load_state_dict, or are lists of such
    objects; `extra` is a value. The state is that of the objects inside of wrappers.
    """
    model, given = wrappers.unwrap_model(model), _given(parts)
    clean, weights = wrappers.cleaner(model), model.state_dict()
    versions = getattr(weights, "_metadata", None)  # of modules, for their own migrations
    return {
        "model": {clean(name): value for name, value in weights.items()},
        "versions": versions and {clean(name): each for name, each in versions.items()},
        **{name: _state_of(part) for name, part in given.items()},
        "types": {name: _type_of(part) for name, part in given.items()},
        "parameters": parameter_names.names_in(model, given.get("optimizer")),
        "extra": extra,
    }


def check(state: Any) -> None:
    """Raise ValueError unless `state` has the form of collect()'s result."""
    try:
        is_whole = (
            all(isinstance(name, str) for name in state["model"])
            and isinstance(state["versions"] or {}, dict)
            and all(isinstance(each, str) for each in state["types"].values())
            and all(name in state for name in (*state["types"], "parameters", "extra"))
        )
        if "random" in state:
            rng_state.check(rng_state.from_plain(state["random"]))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"it is not the state of a training run: {error!r}") from error
    if not is_whole:
        raise ValueError("it is not the state of a training run")


def restore(state: dict[str, Any], model: torch.nn.Module, **parts: Any) -> None:
    """Restore the result of collect() in place, without parts that are None.

    Raises StateMismatchError.
    """
    try:
        check_kinds(state, model, parts)
        model, given = wrappers.unwrap_model(model), _given(parts)
        model.load_state_dict(_weights_for(model, state))
        for name, part in given.items():
            _load(part, state[name])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise StateMismatchError(str(error)) from error
    except (TypeError, AttributeError, IndexError) as error:
        raise StateMismatchError(repr(error)) from error


def check_kinds(state: dict[str, Any], model: torch.nn.Module, parts: dict[str, Any]) -> None:
    """Raise StateMismatchError if the state has other kinds of parts, or parameters in another order."""
    model, given = wrappers.unwrap_model(model), _given(parts)
    for name, part in given.items():
        was, now = state["types"].get(name, "none"), _type_of(part)
        if was != now:
            raise StateMismatchError(f"its {name} was {was}, the script's is {now}")
    if "optimizer" in given:
        names = parameter_names.names_in(model, given["optimizer"])
        if text := parameter_names.difference(state["parameters"], names):
            raise StateMismatchError(text)


def restore_extra(saved: Any, extra: Any) -> None:
    """Restore the state of `extra`, an object or None. Raises StateMismatchError."""
    if (extra is None) != (saved is None):
        has, gives = ("no", "one") if saved is None else ("an", "none")
        raise StateMismatchError(
            f"it has {has} `extra`, and the script gives {gives}. To resume, give what the run that "
            "saved it gave; to start over, use another directory for snapshots"
        )
    if extra is not None:
        extra.load_state_dict(saved)


def changed_by_step(model: torch.nn.Module, optimizer: Any) -> set[int]:
    """Return the addresses of the storages that only a step of the optimizer changes."""
    return {tensor.untyped_storage().data_ptr() for tensor in optimized(model, optimizer)}


def is_on_all(model: torch.nn.Module, optimizer: Any) -> int:
    """Return the size in bytes of the tensors that the optimizer changes, equal on every rank."""
    return sum(tensor.nbytes for tensor in optimized(model, optimizer))


def optimizers_of(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return torch's optimizers inside of wrappers; none if one of them is not torch's."""
    inner = wrappers.unwrap(optimizer)
    each = inner if isinstance(inner, list) else [inner]
    return each if all(isinstance(one, torch.optim.Optimizer) for one in each) else []


def optimized(model: torch.nn.Module, optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters and the optimizer's state; no tensors if it is not torch's."""
    optimizers = optimizers_of(optimizer)
    if not optimizers:
        return []
    states = [state for one in optimizers for state in one.state.values()]
    values = [value for state in states for value in state.values()]
    return [*model.parameters(), *(value for value in values if torch.is_tensor(value))]


def _given(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: wrappers.unwrap(part) for name, part in parts.items() if part is not None}


def _state_of(part: Any) -> Any:
    return [each.state_dict() for each in part] if isinstance(part, list) else part.state_dict()


def _type_of(part: Any) -> str:
    each = part if isinstance(part, list) else [part]
    return ", ".join(type(one).__name__ for one in each)


def _load(part: Any, state: Any) -> None:
    if not isinstance(part, list):
        part.load_state_dict(state)
        return
    for one, its in zip(part, state, strict=True):
        one.load_state_dict(its)


def _weights_for(model: torch.nn.Module, state: dict[str, Any]) -> Any:
    """Return the weights of the state under the names in this model, which may have wrappers."""
    clean, saved = wrappers.cleaner(model), state["model"]
    own = {clean(name): name for name in model.state_dict()}
    weights = collections.OrderedDict((own.get(name, name), each) for name, each in saved.items())
    if state["versions"] is not None:
        weights._metadata = {  # type: ignore[attr-defined]  # noqa: SLF001
            name: state["versions"][clean(name)]
            for name, _ in model.named_modules(remove_duplicate=False)
            if clean(name) in state["versions"]
        }
    return weights
