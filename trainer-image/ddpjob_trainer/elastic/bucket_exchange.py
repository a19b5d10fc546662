"""The exchange of DDP's gradients over gloo, one bucket at a time.

gloo may wait for ever in a collective if connections end while it runs two of them. DDP starts the
all-reduce of a bucket while those of earlier buckets run. So a hook waits for the bucket before
(ADR 0058). It does the same arithmetic as DDP without a hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

ONE_BUCKET_BYTES = 1 << 20  # DDP's first bucket has this size, the others are larger


class BucketExchange:
    """The buckets of one group's model; each waits for the one before."""

    def __init__(self) -> None:
        self._last: Any = None  # the work of the bucket before

    def start(self, gradients: torch.Tensor) -> Any:
        """Start to average a bucket over all ranks; return the future average.

        Raise RuntimeError if the group broke in the bucket before.
        """
        if self._last is not None:
            self._last.wait()
        gradients.mul_(1 / distributed.get_world_size())
        self._last = distributed.all_reduce(gradients, async_op=True)
        return self._last.get_future().then(lambda averaged: averaged.value()[0])


def hook_for(
    parameters: Sequence[torch.nn.Parameter], options: Mapping[str, Any]
) -> tuple[Callable[[], BucketExchange], Any] | None:
    """Return DDP's hook and a function that makes its state; None if DDP needs none.

    Models on devices, models of one bucket, and those for which DDP has a hook need none.
    """
    is_small = sum(each.nbytes for each in parameters) <= ONE_BUCKET_BYTES
    if is_small or any(each.device.type != "cpu" for each in parameters):
        return None
    if options.get("mixed_precision") is not None or options.get("process_group") is not None:
        return None
    return BucketExchange, lambda state, bucket: state.start(bucket.buffer())
