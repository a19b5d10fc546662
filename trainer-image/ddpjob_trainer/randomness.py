"""The states of the random generators in use, in a form that a snapshot can hold.

torch's, Python's, NumPy's where it has been imported, and CUDA's of the device in use.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


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
