"""State survives the way through JSON and tensors, or is refused by its path."""

from __future__ import annotations

import collections
import enum
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from ddpjob_trainer import SnapshotError
from ddpjob_trainer.tensors import serialization
from ddpjob_trainer.tensors.safetensors_writer import TYPES
from trainer.runs import assert_same

Colour = enum.IntEnum("Colour", ["RED"])
Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - as scripts have it


class Unit(float):
    """A user's own number."""


class Kind(str, enum.Enum):  # noqa: UP042 - as scripts have it
    """A string whose str() is another one."""

    A = "a"


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
        [{3, 1, "a"}, frozenset({(1, 2)}), set()],
        [b"raw\xff", b"", {b"key": 1}],
        [torch.Size([2, 3]), torch.Size([])],
        [torch.bfloat16, torch.device("cuda", 1), torch.device("cpu")],
    ],
    ids=lambda value: repr(value).split("\n")[0][:30],
)
def test_round_trip(value: Any) -> None:
    assert_same(there_and_back(value), value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64("nan"), float("nan")),
        (np.int64(2**62), 2**62),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (Colour.RED, 1),
        (Kind.A, "a"),
        (Unit(0.5), 0.5),
        (Point(1, np.float64(2)), (1, 2.0)),
        ({np.int64(1): Colour.RED}, {1: 1}),
    ],
    ids=repr,
)
def test_a_value_with_a_plain_one_of_the_same_content_becomes_that(value: Any, plain: Any) -> None:
    """A learning rate from np.cos() is a NumPy scalar."""
    assert_same(there_and_back(value), plain)


def test_a_set_has_one_form_for_any_order() -> None:
    """Copies on ranks are compared, and the order of strings in a set differs between processes."""
    names = [f"name-{number}" for number in range(20)]
    assert serialization.flatten({*names})[0] == serialization.flatten({*names[::-1]})[0]
    assert serialization.flatten({*names})[0]["set"] == sorted(names)


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
        ([bytearray(b"raw")], r"optimizer\[0\] is a builtins\.bytearray"),
        ({"state": {0: {"x": {1: 2j}}}}, r"optimizer\.state\[0\]\.x\[1\] is a builtins\.complex"),
        ([np.longdouble("0.1")], r"optimizer\[0\] is a numpy\.longdouble"),
        ([collections.defaultdict(int)], r"optimizer\[0\] is a collections\.defaultdict"),
        ({"a": {(1j,): 1}}, r"key \(1j,\) of optimizer\.a\[0\] is a builtins\.complex"),
        ([lambda: 1], r"optimizer\[0\] is a builtins\.function"),
        ([torch.eye(2).to_sparse()], r"optimizer\[0\] is a tensor with .*sparse"),
        ([torch.empty(1, device="meta")], r"optimizer\[0\] is a tensor .* on meta"),
        ([torch.zeros(1, dtype=torch.complex128)], r"optimizer\[0\] .*complex128"),
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


DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "node",
    [
        {"float": 10**400},
        {"float": []},
        {"dtype": "nn"},
        {"device": "abacus"},
        {"dict": [[[], 1]]},
        {"dict": 5},
        {"set": [[1]]},
        {"size": ["a"]},
        {"bytes": "a"},
        {"tensor": "missing"},
        {"tensor": []},
        {"object": 1},
        {"tuple": [], "set": []},
        DEEP,
    ],
    ids=lambda node: str(type(node)) if node is DEEP else str(node)[:30],
)
def test_a_crafted_value_is_a_value_error(node: Any) -> None:
    with pytest.raises(ValueError, match="not encoded as"):
        serialization.restore(node, {})
