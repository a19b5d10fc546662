"""The comparison of the ranks' parameters in snapshot mode, by samples and without a collective.

Replicas begin equal and take equal steps, so they are equal to the bit, and a snapshot holds those of
one rank. Each rank writes checksums of a few elements to the group's store, and rank 0 reads them in
later calls. So nothing waits; if a script calls save() on rank 0 only, nothing is compared. Buffers are
left out: BatchNorm's running statistics may differ.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from ddpjob_protocol.environment import ENV_MEMBERSHIP
from ddpjob_trainer import collectives
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.sharded.layout import is_sharded
from ddpjob_trainer.tensors import wrappers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARAMETERS = 16  # sampled at a time; others at the next step
ELEMENTS = 256  # of each
CALLS = 16  # in which rank 0 looks for the checksums of a step
KEPT = 8  # steps whose checksums rank 0 keeps
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

CAUSES = (
    "A snapshot holds the weights of one rank, so a restart would change the others. Likely causes: the "
    "model is not wrapped in DistributedDataParallel, or is called without the wrapper; the script "
    "changes weights in a way that depends on the rank or on random numbers; or the optimizer has other "
    "options on one rank. If replicas are meant to differ, as in local SGD, or the machines are of "
    "different kinds and round differently: Snapshots(check_replicas=False)."
)


class Replicas:
    """The comparisons of one training run."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._mine: dict[int, dict[str, int]] = {}  # by step, of rank 0
        self._calls = 0  # left

    def record(self, step: int, model: torch.nn.Module) -> None:
        """Take checksums of the model after this step; rank 0 compares them in later calls."""
        if not self.enabled or collectives.world_size() == 1 or is_sharded(model):
            return
        sums = sample(wrappers.unwrap_model(model), step)
        rank = collectives.rank()
        if rank:
            with contextlib.suppress(RuntimeError):  # the end of the store is reported elsewhere
                _store().set(str(rank), json.dumps([step, sums]))
            return
        self._mine.setdefault(step, sums)  # a second save of a step may be of averaged weights
        while len(self._mine) > KEPT:
            del self._mine[min(self._mine)]
        self._calls = CALLS

    def compare(self) -> None:
        """Compare what all ranks have written; raise SnapshotError on rank 0 if ranks differ."""
        if not self._calls or collectives.world_size() == 1:  # the group may have ended
            return
        self._calls -= 1
        found = self._read_others()
        for step in {each for each, _ in found} & self._mine.keys():
            mine = self._mine[step]
            text = describe_difference(
                [mine, *(sums if at == step else mine for at, sums in found)]
            )
            if text:
                raise SnapshotError(f"after step {step} {text} {CAUSES}")
        if found and min(step for step, _ in found) >= max(self._mine):
            self._calls = 0

    def _read_others(self) -> list[tuple[int, dict[str, int]]]:
        """Return the newest step and checksums of each other rank; none if one has written nothing."""
        names = [str(rank) for rank in range(1, collectives.world_size())]
        with contextlib.suppress(RuntimeError):
            store = _store()
            if store.check(names):
                return [json.loads(each) for each in store.multi_get(names)]
        return []


def _store() -> distributed.Store:
    attempt = os.environ.get(ENV_MEMBERSHIP), os.environ.get("TORCHELASTIC_RESTART_COUNT")
    base = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - no public function
    return distributed.PrefixStore(f"ddpjob/replicas/{attempt}", base)


def sample(model: torch.nn.Module, step: int) -> dict[str, int]:
    """Return checksums of some elements of some parameters, by name; others at other steps."""
    named = [
        (name, each) for name, each in model.named_parameters()
        if each.layout == torch.strided and not each.is_meta and each.numel()
    ]  # fmt: skip
    count = min(PARAMETERS, len(named))
    chosen = random.Random(step).sample(named, count)  # noqa: S311 - equal on each rank
    return read_sums({f"the parameter {name}": _checksum(each) for name, each in chosen})


def read_sums(sums: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the values of checksums, which are read once from each device."""
    found: dict[str, int] = {}
    for device in dict.fromkeys(each.device for each in sums.values()):
        names = [name for name, each in sums.items() if each.device == device]
        found |= zip(names, torch.stack([sums[name] for name in names]).tolist(), strict=True)
    return found


def _checksum(parameter: torch.Tensor) -> torch.Tensor:
    plain = parameter.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    flat = plain.reshape(-1)
    return flat[:: max(1, flat.numel() // ELEMENTS)].view(WORDS[flat.itemsize]).sum()


def describe_difference(sums: Sequence[Mapping[str, Any]]) -> str:
    """Return which of the ranks' tensors differs first, and on which ranks.

    Return an empty text if none differs.
    """
    for name in dict.fromkeys(name for each in sums for name in each):
        values = [each.get(name) for each in sums]
        ((most, count),) = collections.Counter(values).most_common(1)
        if count == len(values):
            continue
        others = [rank for rank, value in enumerate(values) if value != most]
        are = "ranks" if len(others) > 1 else "rank"
        return (
            f"the processes train different models: {name} differs on {are} "
            f"{', '.join(map(str, others))} of {len(values)}."
        )
    return ""
