"""A backup of the user's own state for the undo of a step, mostly without a copy of its tensors.

A step is undone only before the optimizer has stepped. A moving average changes after that, so a
step must not copy it. The first steps learn which tensors do not change before; later steps copy
the others only. torch counts the changes of each tensor. Changes through `.data` escape that count, so
the first step compares the contents. If a tensor without a copy has changed in a step that is
undone, the state is lost, and `restore` returns False.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_IMMUTABLE = (bool, int, float, str, bytes)
_Path = tuple[Any, ...]


class _Held(NamedTuple):
    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None  # None: the tensor does not change before the optimizer's step


class ExtraBackup:
    """The user's own state at the begin of a step; one object for all steps."""

    def __init__(self, extra: Any) -> None:
        self._extra = extra
        self._held: dict[_Path, _Held] = {}
        self._plain: Any = None  # the state with None for each tensor
        self._quiet: set[_Path] = set()  # tensors that do not change before the optimizer's step
        self._at_step: dict[_Path, int] | None = None  # versions when the optimizer stepped
        self._is_updated_late = False  # the last whole body changed a tensor after that

    @torch.no_grad()
    def take(self, *, all_tensors: bool = False) -> None:
        """Back the state up, with a copy of every tensor if `all_tensors`."""
        self._learn_late_changes()
        before, self._held = self._held, {}
        state = self._extra.state_dict()
        for path, tensor in _tensors(state):
            own = None
            if all_tensors or path not in self._quiet:
                own = before[path].copy if path in before else None
                fits = own is not None and own.shape == tensor.shape and own.dtype == tensor.dtype
                own = own.copy_(tensor) if own is not None and fits else tensor.detach().clone()
            self._held[path] = _Held(tensor, _version(tensor), own)
        self._plain = _plain_copy(state)
        self._at_step = None

    def on_optimizer_step(self) -> None:
        """Learn which tensors have not changed before the optimizer steps, once per step."""
        if self._at_step is not None:
            return
        now = dict(_tensors(self._extra.state_dict())) if self._learns else {}
        for path, held in self._held.items():
            is_same = held.version == _version(held.tensor)
            if held.copy is None:
                if not is_same:
                    self._quiet.discard(path)
            elif (
                is_same
                and path in now
                and _is(now[path], held.tensor)
                and torch.equal(held.tensor, held.copy)
            ):
                self._quiet.add(path)
        self._at_step = {path: _version(held.tensor) for path, held in self._held.items()}

    def restore(self) -> bool:
        """Restore the state; return False if a tensor has changed that has no copy."""
        without = [held for held in self._held.values() if held.copy is None]
        if any(_version(held.tensor) != held.version for held in without):
            return False
        state = _plain_copy(self._plain)
        for path, held in self._held.items():
            state = _set(state, path, held.tensor if held.copy is None else held.copy)
        self._extra.load_state_dict(state)
        return True

    @property
    def misses_update(self) -> bool:
        """True if a whole body changes the state after the optimizer's step, and this one has not."""
        return self._is_updated_late and not self._has_changed_late

    @property
    def _learns(self) -> bool:
        return any(held.copy is not None for held in self._held.values())

    @property
    def _has_changed_late(self) -> bool:
        at_step = self._at_step or {}
        return any(
            _version(held.tensor) != at_step.get(path, _version(held.tensor))
            for path, held in self._held.items()
        )

    def _learn_late_changes(self) -> None:
        if self._at_step is not None:
            self._is_updated_late = self._has_changed_late


def _version(tensor: torch.Tensor) -> int:
    """Return the number of changes of a tensor; -1 for a tensor of inference mode."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's own counter


def _is(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are one memory, so that a change of one is a change of both."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and _version(one) >= 0 < one.numel()
    )


def _tensors(state: Any, path: _Path = ()) -> Iterator[tuple[_Path, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _tensors(value, (*path, key))
    elif type(state) in (list, tuple):
        for key, value in enumerate(state):
            yield from _tensors(value, (*path, key))


def _plain_copy(state: Any) -> Any:
    """Return a copy of the state with None for each tensor."""
    if state is None or isinstance(state, (torch.Tensor, *_IMMUTABLE)):
        return state if isinstance(state, _IMMUTABLE) else None
    if isinstance(state, dict):
        plain = copy.copy(state)
        plain.update((key, _plain_copy(value)) for key, value in state.items())
        return plain
    if type(state) in (list, tuple):
        return type(state)(map(_plain_copy, state))
    return copy.deepcopy(state)


def _set(state: Any, path: _Path, tensor: torch.Tensor) -> Any:
    """Return the state with a tensor at this path."""
    if not path:
        return tensor
    key, *rest = path
    value = _set(state[key], tuple(rest), tensor)
    if isinstance(state, tuple):
        return type(state)((*state[:key], value, *state[key + 1 :]))
    state[key] = value
    return state
