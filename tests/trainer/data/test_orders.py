"""Orders of the script's own: the same on all ranks, and after a restart; or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import (
    prepare_data_loader,
)
from lightning_fabric.utilities.data import _update_dataloader
from torch.utils.data import DataLoader, DistributedSampler

from ddpjob_trainer import ElasticBatchSampler
from ddpjob_trainer.data.orders import by_length, weighted
from support.forked import Forks
from trainer.data import different_orders
from trainer.data.playing import Numbers, be


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")  # the tests' own ones are put back
    monkeypatch.setenv("WORLD_SIZE", "1")


def test_weighted_draws_are_trained_on_once_each() -> None:
    """70 draws of 20 samples, on another number of ranks at each step."""
    order = weighted([1.0] * 10 + [5.0] * 10, 70, seed=2)
    batches = ElasticBatchSampler(20, 8, order=order)
    for epoch in range(2):
        seen: list[int] = []
        while batches.epoch == epoch:
            world_size = 1 + len(seen) % 3
            for rank in range(world_size):
                be(rank, world_size)
                seen += next(iter(batches)) if any(batches.share().weights) else []
            be(0, 1)
            batches.commit()
        assert seen == order(epoch).tolist()
    assert order(0).tolist() != order(1).tolist()
    often = sum(count for sample, count in Counter(order(0).tolist()).items() if sample >= 10)
    assert often > 45, "five times as likely"


def test_batches_of_similar_lengths() -> None:
    lengths = torch.randint(1, 1000, (1003,), generator=torch.Generator().manual_seed(0))
    order = by_length(lengths, 10)
    found = order(0)
    assert sorted(found.tolist()) == [*range(1003)]
    rows = lengths[found[:1000]].view(-1, 10)
    assert (rows.amax(1) - rows.amin(1)).float().mean() < 30
    assert rows[:, 0].diff().sign().unique().numel() > 1, "not from the shortest to the longest"
    assert order(0).tolist() == found.tolist() != order(1).tolist()


def test_another_order_is_refused() -> None:
    """In the epoch that training is in; the position means nothing in it."""
    before = ElasticBatchSampler(9, 3, order=weighted([1.0] * 9, 12))
    for _ in range(5):
        before.commit()
    state = before.state_dict()
    after = ElasticBatchSampler(9, 3, order=weighted([1.0] * 9, 12))
    after.load_state_dict(state)
    assert next(iter(after)) == next(iter(before))
    for other in (weighted([1.0] * 9, 12, seed=1), lambda _: range(12)):
        with pytest.raises(ValueError, match="order was"):
            ElasticBatchSampler(12, 3, order=other).load_state_dict(state)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (lambda _: [0, 9], r"order\(0\) has indices from 0 to 9, and the data set has 9 samples"),
        (lambda _: [-1, 3], "indices from -1 to 3"),
        (lambda _: [[1, 2]], "give one row of indices"),
        (lambda epoch: [1, 2] * (epoch + 1), r"order\(1\) has 4 samples, order\(0\) has 2"),
    ],
)
def test_orders_that_do_not_fit_are_refused(order: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        take_two_batches(order)


def take_two_batches(order: Any) -> None:
    batches = ElasticBatchSampler(9, 2, order=order)
    batches.commit()
    next(iter(batches))


def test_ranks_compare_their_orders(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    ranks = [
        forks.start(different_orders.__file__, rank, tmp_path, env=python_env) for rank in range(2)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]


# --- loaders that share the batches once more ----------------------------------------------------


def test_nobody_may_share_the_batches_again() -> None:
    """Each rank would train on some of its samples only: with Accelerate, with Fabric."""
    loader = DataLoader(Numbers(32), batch_sampler=ElasticBatchSampler(32, 8))
    with pytest.raises(TypeError, match=r"Leave the DataLoader out of accelerator.prepare\(\)"):
        prepare_data_loader(loader, num_processes=2, process_index=0)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        Numbers(32), num_replicas=2, rank=0
    )
    with pytest.raises(TypeError, match=r"or fabric.setup_dataloaders\(\)"):
        _update_dataloader(loader, sampler)  # as Fabric does with several processes


def test_a_part_whose_samples_nobody_took_is_refused() -> None:
    """Accelerate does that to a process to which another one sends samples."""
    batches = ElasticBatchSampler(32, 8)
    loader = DataLoader(Numbers(32), batch_sampler=batches)
    for _ in loader:
        with batches.part():
            pass
    assert batches.epoch == 1
    with pytest.raises(RuntimeError, match="no loader took"), batches.part():
        pass
