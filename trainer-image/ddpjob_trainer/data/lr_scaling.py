"""Learning rates that follow the size of the batch, where that follows the number of processes.

Knows nothing of loops and of ranks.
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
    """Each step multiplies the learning rates by `by(samples of a batch)`, as `lambda n: n / 256`.

    Outside of `optimizer.step()` they stay as they are: what schedulers and snapshots see does not
    depend on how many processes there are.
    """
    own: list[Any] = []  # rates, a number or a tensor each

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
