"""State survives the way through JSON and tensors, or is refused by its path."""

from __future__ import annotations

import collections
import enum
import json
import random
from typing import Any

import pytest
import torch

from ddpjob_trainer import SnapshotError
from ddpjob_trainer.tensors import serialization
from ddpjob_trainer.tensors.safetensors_writer import TYPES
from trainer.runs import assert_same

Colour = enum.IntEnum("Colour", ["RED"])


def there_and_back(value: Any) -> Any:
    node, tensors = serialization.flatten(value)
    return serialization.restore(json.loads(json.dumps(node, allow_nan=False)), tensors)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [True, 1, 1.0, -0.0, 10**30, "ü\ud800"],
        [float("inf"), float("-inf"), float("nan"), 5e-324, 0.1 + 0.2],
        (1, (2, [3, ()]), []),
        {0: "int", "0": "str", True: "bool", None: "none", 1.5: "float", (1, 2): "tuple"},
        {"tensor": 1, "dict": {}, "float": "nan", "tuple": [{"list": []}]},
        collections.Counter({30: 1, 80: 2}),
        random.Random(3).getstate(),
        torch.get_rng_state(),
        torch.tensor(3),
        torch.empty(0, 3),
        torch.arange(12).reshape(3, 4).T,
        torch.tensor([1.5, float("nan"), float("inf")], dtype=torch.bfloat16),
        {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}},
    ],
    ids=lambda value: repr(value).split("\n")[0][:30],
)
def test_round_trip(value: Any) -> None:
    assert_same(there_and_back(value), value)


@pytest.mark.parametrize("dtype", sorted(TYPES, key=str), ids=str)
def test_every_storable_dtype_is_kept(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1]).to(dtype)
    back = there_and_back(tensor)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_an_ordered_dict_comes_back_as_a_dict() -> None:
    assert_same(there_and_back(collections.OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


def test_a_shared_tensor_is_stored_once_and_shared_again() -> None:
    tied = torch.randn(4)
    _, tensors = serialization.flatten([tied, tied])
    assert len(tensors) == 1
    first, second = there_and_back([tied, tied])
    assert first is second


def test_overlapping_views_are_tensors_of_their_own() -> None:
    base = torch.arange(6.0)
    _, tensors = serialization.flatten([base, base[1:3], base[2:]])
    assert len(tensors) == 3
    assert_same(there_and_back([base, base[1:3], base[2:]]), [base, base[1:3], base[2:]])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"param_groups": [{"foo": object()}]}, r"optimizer\.param_groups\[0\]\.foo is a builtins"),
        ({"state": {0: {"x": {1}}}}, r"optimizer\.state\[0\]\.x is a builtins\.set"),
        ([b"raw"], r"optimizer\[0\] is a builtins\.bytes"),
        ([Colour.RED], r"optimizer\[0\] is a .*Colour"),
        ([lambda: 1], r"optimizer\[0\] is a builtins\.function"),
        ([torch.float32], r"optimizer\[0\] is a torch\.dtype"),
        ([torch.eye(2).to_sparse()], r"optimizer\[0\] is a tensor with .*sparse"),
        ([torch.empty(1, device="meta")], r"optimizer\[0\] is a tensor .* on meta"),
        ([torch.zeros(1, dtype=torch.complex128)], r"optimizer\[0\] .*complex128"),
        ({"a": {b"k": 1}}, r"key b'k' of optimizer\.a is a builtins\.bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_expressed_is_refused_by_its_path(value: Any, path: str) -> None:
    with pytest.raises(SnapshotError, match=path):
        serialization.flatten(value, "optimizer")


def test_a_list_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SnapshotError, match="extra contains itself"):
        serialization.flatten(value, "extra")
