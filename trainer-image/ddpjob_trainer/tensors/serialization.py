"""Encodes training state as JSON and named tensors, and decodes it.

Types are exact, but for these, which have a plain value of the same content: NumPy's scalars and
subclasses of int, float and str (an IntEnum) become those; a namedtuple becomes a tuple, an
OrderedDict a dict in its order. Other types are rejected with their path. Pickle is not used, so
reading a snapshot never runs code. May not: know of files.
"""

from __future__ import annotations

import base64
import collections
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import torch

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.tensors.safetensors_writer import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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
    """Decode the result of flatten(). Raise ValueError for any other value."""
    try:
        return _restore(node, tensors)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(f"a value is not encoded as a snapshot's: {error!r}") from error


def _restore(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_restore(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, body),) = node.items()
    if kind == "tensor":
        return tensors[body]
    if kind in ("dict", "counter"):
        pairs = {_restore(key, tensors): _restore(item, tensors) for key, item in body}
        return pairs if kind == "dict" else collections.Counter(pairs)
    if kind in _GROUPS:
        return _GROUPS[kind](_restore(item, tensors) for item in body)
    if kind in _ATOMS:
        return _ATOMS[kind](body)
    raise ValueError(f"unknown kind of value: {kind}")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch.{name} is not a dtype")
    return found


_GROUPS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "tuple": tuple, "size": torch.Size, "set": set, "frozenset": frozenset,
}  # fmt: skip
_ATOMS: dict[str, Callable[[Any], Any]] = {
    "float": float, "bytes": base64.b64decode, "dtype": _dtype, "device": torch.device,
}  # fmt: skip


_EXACT = {bool, int, float, str, bytes, tuple, torch.Size, list, dict, torch.Tensor}


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[tuple[object, ...], str] = {}  # of tensors, by the location of their data

    def node(self, value: Any, path: str) -> Any:
        value = _plain(value)
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is list:
            return self._items(value, path)
        if kind in (torch.Tensor, torch.nn.Parameter):
            return {"tensor": self._tensor(value, path)}
        if kind is float and math.isfinite(value):
            return value
        return self._tagged(value, path)

    def _tagged(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        name = kind.__name__.lower()
        body: Any
        if kind is float:
            body = repr(value)
        elif kind is bytes:
            body = base64.b64encode(value).decode()
        elif kind in (torch.dtype, torch.device):
            body = str(value).removeprefix("torch.")
        elif kind in (tuple, torch.Size):
            body = self._items(value, path)
        elif kind in (set, frozenset):
            body = sorted((self._key(item, path) for item in value), key=json.dumps)  # on any rank
        elif kind in (dict, collections.OrderedDict, collections.Counter):
            name = "counter" if kind is collections.Counter else "dict"
            body = [
                [self._key(key, path), self.node(item, _join(path, key))]
                for key, item in value.items()
            ]
        else:
            raise SnapshotError(
                f"{path} is a {kind.__module__}.{kind.__qualname__}, which a snapshot cannot hold. "
                "Turn it into tensors, numbers, strings, bytes, lists, tuples, sets or dicts, or "
                "leave it out."
            )
        return {name: body}

    def _items(self, value: Iterable[Any], path: str) -> list[Any]:
        return [self.node(item, f"{path}[{i}]") for i, item in enumerate(value)]

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


def _plain(value: Any) -> Any:
    """Return the plain value of equal content, if there is one; else the value itself."""
    if type(value) in _EXACT:
        return value
    if _is_numpy_scalar(value):
        plain = value.item()
        is_exact = plain == value or (plain != plain and value != value)  # noqa: PLR0124 - NaN
        return plain if type(plain) in _EXACT and is_exact else value
    for base in (int, float, str):
        if isinstance(value, base):
            return getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value)
    return value


def _is_numpy_scalar(value: Any) -> bool:
    return "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic)


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
