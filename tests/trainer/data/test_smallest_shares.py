"""Shares of a smallest number of samples, and models that need every rank to have one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from ddpjob_trainer.data.partition import share_of, split
from trainer.data.playing import Numbers, be
from trainer.runs import Run


@given(
    count=st.integers(1, 300),
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
    least=st.integers(1, 9),
    room=st.none() | st.integers(0, 20),
)
def test_a_share_and_its_parts_have_none_or_enough(
    count: int, weights: list[float], least: int, room: int | None
) -> None:
    sizes = split(count, weights, least)
    assert sum(sizes) == count
    assert all(size == 0 or size >= min(least, count) for size in sizes)
    most = None if room is None else 2 * least - 1 + room
    for rank, size in enumerate(sizes):
        share = share_of(rank, 0, count, tuple(weights), most, least)
        assert all(min(least, count) <= part <= (most or count) for part in share.parts)
        assert sum(share.parts) == size or share.weights == (0.0,)


def test_the_number_of_workers_does_not_decide_whether_batch_norm_works() -> None:
    """35 samples in batches of 16: the last one has 3."""
    batches = ElasticBatchSampler(35, 16, min_samples_per_rank=2)
    assert [split(3, (1.0,) * n, 2) for n in (1, 2, 3)] == [[3], [3, 0], [3, 0, 0]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")  # both are put back
        patch.setenv("WORLD_SIZE", "1")
        seen: list[int] = []
        while batches.epoch == 0:
            for rank in range(5):
                be(rank, 5)
                share = batches.share()
                assert min(share.parts) >= 2
                if any(share.weights):
                    seen += next(iter(batches))
            batches.commit()
    assert sorted(seen) == [*range(35)]


def loop(model: torch.nn.Module, batches: ElasticBatchSampler, **options: Any) -> Loop:
    loader = DataLoader(Numbers(batches.samples), batch_sampler=batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Loop(model, optimizer, loader=loader, epochs=1, **options)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="min_samples_per_rank is 0"):
        ElasticBatchSampler(10, 5, min_samples_per_rank=0)
    with pytest.raises(ValueError, match="need a maximum of 3 or more"):
        ElasticBatchSampler(10, 5, min_samples_per_rank=2, max_samples_per_rank=2)
    with pytest.raises(ValueError, match="the last batch of an epoch has 1 samples"):
        ElasticBatchSampler(11, 5, min_samples_per_rank=2)
    ElasticBatchSampler(11, 5, min_samples_per_rank=2, drop_last=True)
    in_parts = ElasticBatchSampler(10, 5, max_samples_per_rank=2)
    with pytest.raises(ValueError, match="leave out static_graph or max_samples_per_rank"):
        loop(Run().model, in_parts, static_graph=True)
    with pytest.raises(ValueError, match="different numbers of parts"):
        loop(synchronized(), in_parts)


def synchronized() -> torch.nn.Module:
    model: torch.nn.Module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(Run().model)
    return model


def test_synchronized_batch_norm_counts_no_sample_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch has one of eleven samples: it is refused at the first step already."""
    batches = ElasticBatchSampler(11, 5)
    feed = loop(synchronized(), batches).feed
    for world_size in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        feed.restart()
        if world_size == "1":
            next(feed.parts())
            continue
        with pytest.raises(RuntimeError, match="a batch of 1 samples leaves 1 of 2 processes"):
            next(feed.parts())
