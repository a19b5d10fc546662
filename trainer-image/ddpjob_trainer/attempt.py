"""One attempt at a step: what must be undone when its collectives break, and what is kept.

Parameters change in the optimizer's step only, after all gradients have been reduced. So an
attempt that broke before it leaves the model's buffers, random states and the user's own state to
be put back; one that broke after it is a step done.
"""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch


class Attempt:
    """Remembers what a step may change before it counts."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, extra: Any
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._extra = extra
        self._buffers = [buffer.detach().clone() for buffer in model.buffers()]
        self._own = None if extra is None else copy.deepcopy(extra.state_dict())
        self._random = random_states()
        self.applied = False
        self._hook = optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.applied = True

    def end(self) -> None:
        """It counts, or was undone."""
        self._hook.remove()

    def undo(self) -> None:
        """As if it had not begun."""
        with torch.no_grad():
            for buffer, before in zip(self._model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)
        if self._extra is not None:
            self._extra.load_state_dict(self._own)
        set_random_states(self._random)
        self._optimizer.zero_grad(set_to_none=True)


def random_states() -> dict[str, Any]:
    """Of torch, Python, and what else is in use."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Inverse of random_states()."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


def draw_seed(state: torch.Tensor, rank: int) -> None:
    """Random numbers that follow from those of another rank, and are none of its own."""
    generator = torch.Generator()
    generator.set_state(state)
    seed = int(torch.randint(2**62, (1,), generator=generator)) ^ rank
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
