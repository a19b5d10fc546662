"""The comparison of all ranks' parameters and optimizers' states, by checksum.

Replicas begin equal and take equal steps, so they are equal to the bit. Buffers are left out:
BatchNorm's running statistics may differ. The ranks exchange one number each; they exchange the
checksums of all tensors only to name the first one that differs.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddpjob_trainer import collectives
from ddpjob_trainer.elastic.state.checksum import lazy_checksum
from ddpjob_trainer.snapshots.replicas import describe_difference, read_sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CAUSES = (
    "Likely causes: the model itself is called instead of loop.model, so no gradients are exchanged; the "
    "script changes weights in a way that depends on the rank or on random numbers; or the optimizer has "
    "other options on one rank. If the machines are of different kinds, their sums may be rounded "
    "differently: then give the Loop check_replicas=False."
)


class ReplicaError(Exception):
    """The parameters or the optimizers' states differ between ranks."""


class ReplicaCheck:
    """The comparisons of one training state, one at a time; each rank calls the same methods."""

    def __init__(
        self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, enabled: bool
    ) -> None:
        self._model = model
        self._optimizers = optimizers
        self._enabled = enabled
        self._mine: torch.Tensor | None = None  # the state at the start of the comparison

    def start(self) -> None:
        """Begin the comparison of the present state, without another rank."""
        if self._enabled and collectives.world_size() > 1:
            self._mine = torch.tensor([_digest(self.checksums())], device=collectives.device())

    def finish(self) -> None:
        """End the comparison, if one has begun, after all ranks have begun it.

        Raise ReplicaError on all ranks if their states differed then and now, and RuntimeError if
        the group breaks.
        """
        if self._mine is None:
            return
        mine, self._mine = self._mine, None
        digests = [torch.empty_like(mine) for _ in range(collectives.world_size())]
        distributed.all_gather(digests, mine)
        if len({int(each) for each in digests}) > 1:
            text = describe_difference(collectives.all_gather_objects(self.checksums()))
            if text:
                raise ReplicaError(f"{text} {CAUSES}")

    def check(self) -> None:
        """Compare the present state, or end a comparison that has begun. Raise as finish()."""
        if self._mine is None:
            self.start()
        self.finish()

    def forget(self) -> None:
        """Forget a comparison that has begun: its group was left."""
        self._mine = None

    def checksums(self) -> dict[str, int]:
        """Return the checksums of all parameters and optimizers' states by their names."""
        found = dict(self._values())
        lazy = {
            name: lazy_checksum(value)
            for name, value in found.items()
            if isinstance(value, torch.Tensor) and value.layout == torch.strided
        }
        sums = read_sums(lazy)
        numbers = {n: v for n, v in found.items() if isinstance(v, (bool, int, float))}
        return {
            n: sums[n] if n in sums else zlib.crc32(repr(numbers.get(n)).encode()) for n in found
        }

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield the names and values of the state."""
        names: dict[torch.Tensor, str] = {}
        for name, parameter in self._model.named_parameters():
            names[parameter] = name
            yield f"the parameter {name}", parameter
        for number, optimizer in enumerate(self._optimizers):
            kind = f"optimizer {number} ({type(optimizer).__name__})"
            for key, state in optimizer.state.items():
                for path, value in _leaves(state, ""):
                    yield f"{path[1:]} of {names.get(key, 'a parameter')} in {kind}", value


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path}.{number}")
    else:
        yield path, value


def _digest(sums: Mapping[str, int]) -> int:
    digest = hashlib.sha256(repr([*sums.items()]).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
