"""The states of the random generators in use, in a form that a snapshot can hold.

The generators are those of torch and Python, NumPy's global one if it is imported, and CUDA's of
the current device. NumPy's is a Mersenne Twister (`_TWISTER`), unless the script has set another.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

_TENSORS = ("torch", "cuda")
_TWISTER = "MT19937"


def get_state() -> dict[str, Any]:
    """Return the states of this process."""
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        found["numpy"] = _numpys_state()
    return found


def set_state(found: dict[str, Any]) -> None:
    """Set the states of get_state(); ignore generators that are not in use."""
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    if "cuda" in found and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(found["cuda"])
    if "numpy" in found and "numpy" in sys.modules:
        _set_numpys_state(found["numpy"])


def to_plain(found: dict[str, Any]) -> dict[str, Any]:
    """Return the states without tensors: values that differ between ranks stay out of them."""
    plain: dict[str, Any] = {
        name: bytes(found[name].tolist()).hex() for name in _TENSORS if name in found
    }
    if isinstance(found.get("numpy"), tuple):
        kind, keys, *rest = found["numpy"]
        plain["numpy"] = (kind, keys.tolist(), *rest)
    return {**found, **plain}


def from_plain(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the states from the result of to_plain()."""
    found: dict[str, Any] = {
        name: torch.tensor([*bytes.fromhex(plain[name])], dtype=torch.uint8, device="cpu")
        for name in _TENSORS
        if name in plain
    }
    if isinstance(plain.get("numpy"), tuple):
        kind, keys, *rest = plain["numpy"]
        found["numpy"] = (kind, torch.tensor(keys, device="cpu"), *rest)
    return {**plain, **found}


def check(found: dict[str, Any]) -> None:
    """Raise TypeError, ValueError, KeyError or RuntimeError for states that no generator takes."""
    torch.Generator("cpu").set_state(found["torch"])
    random.Random().setstate(found["python"])  # noqa: S311 - no secret


def draw_from(state: torch.Tensor, rank: int) -> None:
    """Seed all generators from another rank's state, without repeating that rank's numbers."""
    generator = torch.Generator("cpu")
    generator.set_state(state)
    seed(int(torch.randint(2**62, (1,), generator=generator, device="cpu")) ^ rank)


def draw(*source: int) -> None:
    """Seed all generators from these numbers alone."""
    digest = hashlib.sha256("/".join(map(str, source)).encode()).digest()
    seed(int.from_bytes(digest[:8], "big") >> 1)


def seed(number: int) -> None:
    """Seed all generators with one number."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        _seed_numpy(sys.modules["numpy"].random, number)


def _seed_numpy(numpys: Any, number: int) -> None:
    now = getattr(numpys, "get_bit_generator", lambda: None)()  # absent before NumPy 1.24
    if now is None or type(now).__name__ == _TWISTER:
        numpys.seed(number % 2**32)
    else:
        numpys.set_bit_generator(type(now)(number))


def _numpys_state() -> Any:
    """Return a tuple for a Mersenne Twister, a dict of plain values for other generators."""
    state = sys.modules["numpy"].random.get_state(legacy=False)
    if state["bit_generator"] != _TWISTER:
        return _plain(state)
    keys = torch.from_numpy(state["state"]["key"].astype("int64"))
    return _TWISTER, keys, state["state"]["pos"], state["has_gauss"], state["gauss"]


def _set_numpys_state(found: Any) -> None:
    numpy = sys.modules["numpy"]
    if isinstance(found, dict):
        numpy.random.set_state(_with_arrays(found))
    else:
        kind, keys, *rest = found
        numpy.random.set_state((kind, keys.tolist(), *rest))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _with_arrays(value: Any) -> Any:
    """Return the value from the result of _plain()."""
    if isinstance(value, dict):
        return {name: _with_arrays(each) for name, each in value.items()}
    return sys.modules["numpy"].array(value, "uint64") if isinstance(value, list) else value
