"""One rank of two with a model of several buckets: two_buckets.py RANK FOLDER."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import distributed, nn

from ddpjob_trainer.elastic.ddp_model import ElasticModel
from ddpjob_trainer.elastic.group.break_errors import is_group_error

WIDTH = 600  # two layers of 1.4 MB


class Work:
    """An all-reduce, and whether the exchange has waited for its end."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.is_over = False

    def wait(self) -> None:
        self._work.wait()
        self.is_over = True

    def get_future(self) -> Any:
        return self._work.get_future()


class Counting:
    """The all-reduces of the exchange, and how many of them ran at a time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.works: list[Work] = []
        self.most = 0
        self._all_reduce: Any = distributed.all_reduce
        patch.setattr(distributed, "all_reduce", self._start)

    def _start(self, tensor: torch.Tensor, **options: Any) -> Work:
        self.works.append(Work(self._all_reduce(tensor, **options)))
        self.most = max(self.most, sum(not work.is_over for work in self.works))
        return self.works[-1]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def gradients(net: nn.Module, wrapped: nn.Module, rank: int) -> list[torch.Tensor]:
    for seed in range(2):  # DDP changes the order of its buckets after the first pass
        net.zero_grad()
        inputs = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2 * seed + rank))
        wrapped(inputs).square().mean().backward()
    return [each.grad for each in net.parameters() if each.grad is not None]


def exchange_by_hook() -> None:
    own = ElasticModel(model(), {})
    own.wrap()
    called: list[object] = []

    def hook(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        called.append(state)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # DDP compares them, and here they are texts
    own.register_comm_hook(object, hook)
    own(torch.ones(1, WIDTH)).sum().backward()
    assert called


def main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", world_size=2, rank=rank)
    plain = model()
    expected = gradients(plain, nn.parallel.DistributedDataParallel(plain), rank)
    net = model()
    loop_model = ElasticModel(net, {"bucket_cap_mb": 1})
    loop_model.wrap()
    with pytest.MonkeyPatch.context() as patch:
        counting = Counting(patch)
        found = gradients(net, loop_model, rank)
        works = len(counting.works)
        exchange_by_hook()
        assert len(counting.works) == works, "the script's own hook wins"
    assert works > 4, "several buckets"
    assert counting.most == 1, "at a time"
    assert all(map(torch.equal, expected, found)), "the bits of DDP"
    distributed.barrier()
    if rank == 1:
        os._exit(0)
    with pytest.raises(RuntimeError) as raised:
        gradients(net, loop_model, rank)
    assert is_group_error(raised.value), raised.value
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
