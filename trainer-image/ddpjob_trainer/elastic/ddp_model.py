"""The model as a live script sees it: one object over all changes of the process group.

A DistributedDataParallel divides by the world size at its construction. After a change it would
train wrongly without an error. So this module creates a new one for each membership.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator


class ElasticModel(nn.Module):
    """A model that is called like a DistributedDataParallel; `module` is the model itself."""

    def __init__(self, module: nn.Module, options: dict[str, Any], *, alone: bool = False) -> None:
        """Wrap `module`; with `alone`, another part exchanges gradients, so DDP is left out."""
        super().__init__()
        self.module = module
        self._options = options
        self._alone = alone
        self._current: list[nn.Module] = []  # a list hides it from nn.Module

    def wrap(self) -> None:
        """Wrap the model for the current group, whose ranks have equal parameters."""
        if self._alone:
            self._current = [self.module]
        else:
            self._current = [DistributedDataParallel(self.module, init_sync=False, **self._options)]

    def unwrap(self) -> None:
        """Drop the wrapper of the current group."""
        self._current = []

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the model over the current group."""
        return self.wrapped(*inputs, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gather gradients only locally, as DistributedDataParallel.no_sync()."""
        wrapped = self.wrapped
        if isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            yield

    @property
    def wrapped(self) -> nn.Module:
        """The model over the current group. Raises RuntimeError outside of `with step:`."""
        if not self._current:
            raise RuntimeError("the model can be called in `with step:` only: now it has no group")
        return self._current[0]
