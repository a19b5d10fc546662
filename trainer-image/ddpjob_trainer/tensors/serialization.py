"""Encodes training state as JSON and named tensors, with exact types, and decodes it.

Values of other types are rejected with their path. Pickle is not used, so reading a snapshot never
runs code. An OrderedDict is restored as a dict; both keep their order. May not: know of files.
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.tensors.safetensors_writer import TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping


def flatten(value: Any, path: str = "state") -> tuple[Any, dict[str, torch.Tensor]]:
    """Return a JSON value, and the tensors of `value` by their names in the JSON value.

    Raises SnapshotError with the path of a value that cannot be encoded.
    """
    flattener = _Flattener()
    try:
        return flattener.node(value, path), flattener.tensors
    except RecursionError:
        raise SnapshotError(
            f"{path} contains itself, or is nested too deeply to be saved"
        ) from None


def node_of(parts: Mapping[str, Any]) -> Any:
    """Return the JSON value of a dict of encoded values."""
    return {"dict": [[name, node] for name, node in parts.items()]}


def restore(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Decode the result of flatten(). Raises KeyError or ValueError for any other value."""
    if isinstance(node, list):
        return [restore(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, body),) = node.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "float":
        return float(body)
    if kind == "tuple":
        return tuple(restore(item, tensors) for item in body)
    if kind in ("dict", "counter"):
        pairs = {restore(key, tensors): restore(item, tensors) for key, item in body}
        return pairs if kind == "dict" else collections.Counter(pairs)
    raise ValueError(f"unknown kind of value: {kind}")


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[object, ...], str] = {}  # of tensors, by the location of their data

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind in (list, tuple):
            items = [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        if kind in (dict, collections.OrderedDict, collections.Counter):
            return {
                "counter" if kind is collections.Counter else "dict": [
                    [self._key(key, path), self.node(item, _join(path, key))]
                    for key, item in value.items()
                ]
            }
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {"tensor": self._tensor(value, path)}
        raise SnapshotError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which a snapshot cannot hold. "
            "Turn it into tensors, numbers, strings, lists, tuples or dicts, or leave it out."
        )

    def _key(self, key: Any, path: str) -> Any:
        if isinstance(key, torch.Tensor):
            raise SnapshotError(f"{path} has a tensor as a key, which a snapshot cannot hold")
        return self.node(key, f"key {key!r} of {path}")

    def _tensor(self, tensor: torch.Tensor, path: str) -> str:
        if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in TYPES:
            raise SnapshotError(
                f"{path} is a tensor with {tensor.dtype}, {tensor.layout} on {tensor.device}, "
                "which a snapshot cannot hold"
            )
        tensor = tensor.detach()
        address = tensor.untyped_storage().data_ptr()
        key = (address, tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in self._names:
            return self._names[key]
        name, copies = path, 1
        while name in self.tensors:
            copies += 1
            name = f"{path}#{copies}"
        self.tensors[name] = tensor
        self._names[key] = name
        return name


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
