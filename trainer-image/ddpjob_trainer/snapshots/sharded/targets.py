"""The memory for the tensors of a snapshot: the model's own, and new tensors for the optimizer."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots import restoring
from ddpjob_trainer.snapshots.model.chunks import whole
from ddpjob_trainer.snapshots.model.manifest import SENSELESS, UnusableError
from ddpjob_trainer.snapshots.sharded import optimizer_order
from ddpjob_trainer.snapshots.sharded.layout import chunk_of, is_dtensor, local_of
from ddpjob_trainer.snapshots.sharded.reading import ShardedReader, Target
from ddpjob_trainer.snapshots.sharded.saving import check_storages
from ddpjob_trainer.tensors import serialization, training_state
from ddpjob_trainer.tensors.training_state import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.own_memory import OwnMemory
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
    from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot
    from ddpjob_trainer.tensors.safetensors_reader import TensorSpec


def prepare_read(
    storage: SnapshotStorage,
    storage_group: StorageGroup,
    model: torch.nn.Module,
    optimizer: Any,
    own: OwnMemory,
) -> Callable[[OpenSnapshot], dict[str, Any]]:
    """Return a function that reads this rank's part of a snapshot; see `read_state`.

    Raise SnapshotError if the ranks do not share one storage.
    """
    check_storages(storage_group, storage)

    def read(snapshot: OpenSnapshot) -> dict[str, Any]:
        own.is_overwritten = True
        try:
            return read_state(snapshot, model, optimizer)
        except StateMismatchError as error:
            name = storage.name(snapshot.manifest["step"])
            raise restoring.misfit(name, error, storage.how_to_reset) from error

    return read


def read_state(snapshot: OpenSnapshot, model: torch.nn.Module, optimizer: Any) -> dict[str, Any]:
    """Read the state of a snapshot into the model's own tensors, and return it.

    DTensors of the result hold this rank's part, and their layout is the script's. Raise
    StateMismatchError before any tensor is changed, and UnusableError or OSError, after which
    tensors may hold a part of the snapshot.
    """
    reader = ShardedReader(snapshot)
    try:
        placing = _Placing(reader)
        state = {
            part: serialization.restore(node, _Names())
            for part, node in snapshot.manifest["state"].items()
        }
        own: dict[str, Any] = {"model": training_state.collect(model, None)["model"]}
        if (optimizers := training_state.optimizers_of(optimizer)) and "optimizer" in state:
            states = optimizer_order.by_name(state, model, optimizers)
            mine = [_moments(*each, reader) for each in zip(optimizers, states, strict=True)]
            own["optimizer"] = mine if len(mine) > 1 else mine[0]
        content = {part: placing.visit(value, own.get(part), part) for part, value in state.items()}
        reader.fill(placing.targets)
    except SnapshotError:
        raise
    except SENSELESS as error:
        raise UnusableError(f"its content makes no sense: {error!r}") from error
    return content


class _Saved(str):
    """The name of a saved tensor, in the place of the tensor."""

    __slots__ = ()


class _Names(dict[str, Any]):
    """The saved tensors by name."""

    def __missing__(self, name: str) -> _Saved:
        return _Saved(name)


class _Placing:
    """The choice of memory for each saved tensor of a state."""

    def __init__(self, reader: ShardedReader) -> None:
        self._reader = reader
        self.targets: list[tuple[str, Target]] = []

    def visit(self, value: Any, own: Any, path: str) -> Any:
        """Return the state with tensors in the place of descriptions; prefer those of `own`."""
        if isinstance(value, _Saved):
            return self._place(self._reader.spec(value), own, path)
        if isinstance(value, dict):
            mine = own if isinstance(own, dict) else {}
            return type(value)(
                {
                    key: self.visit(each, mine.get(key), f"{path}.{key}")
                    for key, each in value.items()
                }
            )
        if type(value) in (list, tuple):
            its = (
                own if type(own) is type(value) and len(own) == len(value) else [None] * len(value)
            )
            return type(value)(
                self.visit(each, mine, f"{path}[{number}]")
                for number, (each, mine) in enumerate(zip(value, its, strict=True))
            )
        return value

    def _place(self, spec: TensorSpec, found: Any, path: str) -> torch.Tensor:
        own: torch.Tensor = (
            found
            if isinstance(found, torch.Tensor)
            else torch.empty(spec.shape, dtype=spec.kind, device="cpu")
        )
        if tuple(own.shape) != spec.shape:
            raise StateMismatchError(
                f"{path} has the shape {[*spec.shape]} there, and {[*own.shape]} in the script"
            )
        if own.is_meta or local_of(own).is_meta:
            raise StateMismatchError(
                f"{path} has no memory yet (device meta): call model.to_empty(device=...) first"
            )
        chunk = chunk_of(own, path) if is_dtensor(own) else whole(spec.shape)
        if chunk is not None:
            self.targets.append((spec.name, Target(local_of(own), chunk)))
        return own


def _moments(
    optimizer: torch.optim.Optimizer, state: dict[str, Any], reader: ShardedReader
) -> dict[str, Any]:
    """Return memory for an optimizer's state: its own, or new one in the parameter's layout."""
    saved = itertools.chain(*(group["params"] for group in state["param_groups"]))
    parameters = itertools.chain(*(group["params"] for group in optimizer.param_groups))
    return {
        "state": {
            number: {
                key: _memory(
                    optimizer.state.get(parameter, {}).get(key), parameter, reader.spec(value)
                )
                for key, value in state["state"].get(number, {}).items()
                if isinstance(value, _Saved)
            }
            for number, parameter in zip(saved, parameters, strict=False)
        }
    }


def _memory(own: Any, parameter: torch.Tensor, spec: TensorSpec) -> torch.Tensor | None:
    if isinstance(own, torch.Tensor) or not is_dtensor(parameter) or not spec.shape:
        return own if isinstance(own, torch.Tensor) else None
    if tuple(parameter.shape) == spec.shape:
        return torch.empty_like(parameter, dtype=spec.kind, requires_grad=False)
    from torch.distributed import tensor  # noqa: PLC0415 - there is a DTensor, so it is loaded

    return tensor.zeros(spec.shape, dtype=spec.kind, device_mesh=parameter.device_mesh)  # type: ignore[attr-defined]
