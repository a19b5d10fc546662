"""The model as a live script sees it: one object over all changes, whatever the group below it.

A DistributedDataParallel divides by the world size that it was made for: kept over a change it
trains wrong without a word. So there is a new one for each membership, hidden in here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator


class ElasticModel(nn.Module):
    """Like a DistributedDataParallel: call it; `module` is the model itself."""

    def __init__(self, module: nn.Module, options: dict[str, Any], *, alone: bool = False) -> None:
        """`alone`: somebody else exchanges gradients, so it is called as it is."""
        super().__init__()
        self.module = module
        self._options = options
        self._alone = alone
        self._current: list[nn.Module] = []  # a list hides it from nn.Module

    def wrap(self) -> None:
        """For the group that torch is in now; all its ranks have the same parameters."""
        if self._alone:
            self._current = [self.module]
        else:
            self._current = [DistributedDataParallel(self.module, init_sync=False, **self._options)]

    def unwrap(self) -> None:
        """Forget the group."""
        self._current = []

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Of the model, over the current group."""
        return self.wrapped(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are only gathered locally, as DistributedDataParallel.no_sync()."""
        wrapped = self.wrapped
        if isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            yield

    @property
    def wrapped(self) -> nn.Module:
        """The model over the group of now."""
        if not self._current:
            raise RuntimeError("the model can be called in `with step:` only: now it has no group")
        return self._current[0]
