"""The states of the random generators in use, and in a form that a snapshot can hold.

torch's, Python's, NumPy's where it has been imported, and CUDA's of the device in use.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

_TENSORS = ("torch", "cuda")


def states() -> dict[str, Any]:
    """Of this process."""
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        found["numpy"] = (kind, torch.from_numpy(keys.astype("int64")), *rest)
    return found


def restore(found: dict[str, Any]) -> None:
    """Inverse of states(); what is not in use here is left out."""
    torch.set_rng_state(found["torch"])
    random.setstate(found["python"])
    if "cuda" in found and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(found["cuda"])
    if "numpy" in found and "numpy" in sys.modules:
        kind, keys, *rest = found["numpy"]
        sys.modules["numpy"].random.set_state((kind, keys.tolist(), *rest))


def written(found: dict[str, Any]) -> dict[str, Any]:
    """The same without a tensor: what differs between copies of a snapshot is no part of theirs."""
    plain: dict[str, Any] = {
        name: bytes(found[name].tolist()).hex() for name in _TENSORS if name in found
    }
    if "numpy" in found:
        kind, keys, *rest = found["numpy"]
        plain["numpy"] = (kind, keys.tolist(), *rest)
    return {**found, **plain}


def read(plain: dict[str, Any]) -> dict[str, Any]:
    """Inverse of written()."""
    found: dict[str, Any] = {
        name: torch.tensor([*bytes.fromhex(plain[name])], dtype=torch.uint8)
        for name in _TENSORS
        if name in plain
    }
    if "numpy" in plain:
        kind, keys, *rest = plain["numpy"]
        found["numpy"] = (kind, torch.tensor(keys), *rest)
    return {**plain, **found}


def draw_from(state: torch.Tensor, rank: int) -> None:
    """Random numbers that follow from those of another rank, and are none of its own."""
    generator = torch.Generator()
    generator.set_state(state)
    seed(int(torch.randint(2**62, (1,), generator=generator)) ^ rank)


def draw(*source: int) -> None:
    """Random numbers that follow from these numbers alone."""
    digest = hashlib.sha256("/".join(map(str, source)).encode()).digest()
    seed(int.from_bytes(digest[:8], "big") >> 1)


def seed(number: int) -> None:
    """The same for all generators."""
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)
