"""Learning rates that follow the size of the batch, if the number of processes sets that size.

This module does not depend on loops or ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ddpjob_trainer.data.batch_sampler import ElasticBatchSampler


def scale_lr(
    optimizer: torch.optim.Optimizer, batches: ElasticBatchSampler, by: Callable[[int], float]
) -> None:
    """Multiply the learning rates in each step by `by(samples of a batch)`, as `lambda n: n / 256`.

    `optimizer` is any optimizer, and `batches` the sampler of its batches. Outside of `optimizer.step()` the rates are unchanged. So schedulers and snapshots do not depend
    on the number of processes.
    """
    own: list[Any] = []  # unscaled rates, a number or a tensor each

    def scale(*_: Any) -> None:
        factor = by(batches.batch_size)
        own[:] = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = rate * factor

    def put_back(*_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = rate

    optimizer.register_step_pre_hook(scale)
    optimizer.register_step_post_hook(put_back)
