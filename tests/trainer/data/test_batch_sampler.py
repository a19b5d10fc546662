"""Every sample of an epoch once, at its true weight, on any rank and with any prefetch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop, Snapshots
from ddpjob_trainer.data.partition import share_of, split
from ddpjob_trainer.errors import SnapshotError
from trainer.data.playing import Numbers
from trainer.runs import Run, assert_same


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch)


class Ranks:
    """Which rank this process is meant to be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def be(self, rank: int, world_size: int) -> None:
        self._monkeypatch.setenv("RANK", str(rank))
        self._monkeypatch.setenv("WORLD_SIZE", str(world_size))

    def each(self, world_size: int) -> Iterator[int]:
        for rank in range(world_size):
            self.be(rank, world_size)
            yield rank


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A loop without an agent makes a group of one process."""
    yield
    leave()


def leave() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def batch_of_all(batches: ElasticBatchSampler, ranks: Ranks, world_size: int) -> list[int]:
    """Return the samples that all ranks together train on next, without ghosts of weight 0."""
    found = []
    for _ in ranks.each(world_size):
        share, parts = batches.share(), iter(batches)
        for weight in share.weights:
            part = next(parts)
            found += part if weight else []
    return found


# --- shares -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "weights", "sizes"),
    [
        (30, [1, 1, 1, 1], [8, 8, 8, 6]),
        (30, [2, 1, 1], [15, 8, 7]),
        (9, [1] * 6, [2, 2, 2, 2, 1, 0]),
        (3, [0.1, 0.2], [1, 2]),
        (10, [0.3, 0.3, 0.4], [3, 3, 4]),
    ],
)
def test_shares_are_in_proportion(count: int, weights: list[float], sizes: list[int]) -> None:
    assert split(count, weights) == sizes


@given(st.integers(1, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_shares_add_up_and_none_is_too_large(count: int, weights: list[float]) -> None:
    sizes = split(count, weights)
    assert sum(sizes) == count
    for size, weight in zip(sizes, weights, strict=True):
        assert 0 <= size < count * weight / sum(weights) + 1


def test_who_gets_nothing_has_a_sample_of_weight_zero() -> None:
    assert [share_of(r, 20, 2, (1.0,) * 3).weights for r in range(3)] == [(1.5,), (1.5,), (0.0,)]
    assert share_of(2, 20, 2, (1.0,) * 3).first == 20


# --- once, whatever the history -----------------------------------------------------------------


@given(
    samples=st.integers(1, 60),
    size=st.integers(1, 25),
    most=st.none() | st.integers(1, 5),
    drop_last=st.booleans(),
    worlds=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_every_sample_of_an_epoch_once(
    samples: int, size: int, most: int | None, drop_last: bool, worlds: list[int]
) -> None:
    size = min(size, samples)
    batches = ElasticBatchSampler(
        samples, size, seed=3, drop_last=drop_last, max_samples_per_rank=most
    )
    alone = ElasticBatchSampler(samples, size, seed=3, drop_last=drop_last)
    with pytest.MonkeyPatch.context() as patch:
        ranks, step = Ranks(patch), 0
        seen: list[int] = []
        while batches.epoch == 0:
            world_size = worlds[step % len(worlds)]
            batch = batch_of_all(batches, ranks, world_size)
            assert batch == batch_of_all(alone, ranks, 1), "the same batch as one rank alone has"
            seen += batch
            batches.commit()
            alone.commit()
            step += 1
    assert all(count == 1 for count in Counter(seen).values())
    assert len(seen) == (samples - samples % size if drop_last else samples)


@given(
    samples=st.integers(7, 60),
    size=st.integers(1, 8),
    drop_last=st.booleans(),
    worlds=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_batches_that_grow_with_the_processes(
    samples: int, size: int, drop_last: bool, worlds: list[int]
) -> None:
    """Each sample once; every batch is `size` for each process, but for the epoch's last."""
    size = min(size, samples // 7)
    batches = ElasticBatchSampler(samples, size, drop_last=drop_last, per_process=True)
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        ranks, step = Ranks(patch), 0
        while True:
            world_size = worlds[step % len(worlds)]
            ranks.be(0, world_size)
            batches.sync_speeds()
            if batches.epoch:
                break
            batch = batch_of_all(batches, ranks, world_size)
            left = samples - len(seen)
            assert len(batch) == (size * world_size if drop_last else min(left, size * world_size))
            seen += batch
            batches.commit()
            step += 1
    assert max(Counter(seen).values()) == 1
    assert drop_last or len(seen) == samples


def test_epochs_differ_and_are_the_same_again() -> None:
    first, again = ElasticBatchSampler(100, 10, seed=1), ElasticBatchSampler(100, 10, seed=1)
    epochs = []
    for _ in range(2):
        assert [*first] == [*again]
        epochs.append([*first])
        for _ in range(10):
            first.commit()
            again.commit()
    assert epochs[0] != epochs[1]
    assert [*ElasticBatchSampler(100, 10, seed=2)] != epochs[0]
    assert [*ElasticBatchSampler(5, 2, shuffle=False)] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_fetched_ahead_is_neither_lost_nor_repeated(ranks: Ranks, workers: int) -> None:
    """Two ranks train on five batches, their loaders are further; three ranks continue."""
    seen: list[int] = []
    state = ElasticBatchSampler(100, 10).state_dict()
    for world_size, count in ((2, 5), (3, 5)):
        taken: list[list[int]] = []
        for _ in ranks.each(world_size):
            batches = ElasticBatchSampler(100, 10)
            batches.load_state_dict(state)
            loader = DataLoader(Numbers(100), batch_sampler=batches, num_workers=workers)
            numbers: list[int] = []
            for batch, _ in zip(loader, range(count), strict=False):
                with batches.part():
                    numbers += batch.tolist()
            taken.append(numbers)
        state = batches.state_dict()
        seen += [number for numbers in taken for number in numbers]
    assert sorted(seen) == [*range(100)]


def test_its_length_is_what_is_left(ranks: Ranks) -> None:
    batches = ElasticBatchSampler(95, 10, max_samples_per_rank=3)
    for _ in ranks.each(2):
        assert len(batches) == len([*batches])
    batches.commit()
    for _ in ranks.each(3):
        assert len(batches) == len([*batches])
    assert ElasticBatchSampler(95, 10).remaining(2) == 20
    assert batches.remaining(2) == 19
    assert batches.remaining(0) == 0


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("most", [None, 2])
def test_gradients_are_those_of_the_whole_batch(
    ranks: Ranks, world_size: int, most: int | None
) -> None:
    """The mean over ranks, as DDP forms it, of what each has added up over its parts."""
    inputs = torch.randn(23, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(5, dtype=torch.float64, requires_grad=True)

    def loss(indices: list[int]) -> torch.Tensor:
        return (inputs[indices] @ weight).pow(2).mean()

    batches = ElasticBatchSampler(inputs, 10, max_samples_per_rank=most)
    while batches.epoch == 0:
        batch = batch_of_all(batches, ranks, 1)
        (expected,) = torch.autograd.grad(loss(batch), weight)
        total = torch.zeros_like(weight)
        for _ in ranks.each(world_size):
            for part, factor in zip(iter(batches), batches.share().weights, strict=False):
                total += torch.autograd.grad(loss(part) * factor, weight)[0]
        assert torch.allclose(total / world_size, expected, rtol=1e-12, atol=0)
        batches.commit()


def test_gradients_are_exchanged_with_the_last_part_only() -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    batches, flags = ElasticBatchSampler(9, 5, max_samples_per_rank=2), []
    for _ in batches:
        with batches.part(model) as part:
            flags.append((model.require_backward_grad_sync, part.is_last, part.weight))
    assert flags == [
        (False, False, 0.4), (False, False, 0.4), (True, True, 0.2),
        (False, False, 0.5), (True, True, 0.5),
    ]  # fmt: skip
    assert (batches.epoch, batches.position) == (1, 0)


# --- state and errors ----------------------------------------------------------------------------


def test_a_batch_of_another_size_continues_where_training_was() -> None:
    before = ElasticBatchSampler(100, 10)
    seen = next(iter(before))
    before.commit()
    after = ElasticBatchSampler(100, 7)
    after.load_state_dict(before.state_dict())
    assert sorted(seen + [i for part in after for i in part]) == [*range(100)]


def test_at_the_end_of_an_epoch_comes_the_next_one() -> None:
    before = ElasticBatchSampler(100, 10)
    for _ in range(9):
        before.commit()
    after = ElasticBatchSampler(100, 40, drop_last=True)
    after.load_state_dict(before.state_dict())
    assert (after.epoch, after.position) == (1, 0)


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (ElasticBatchSampler(90, 10), "samples was 100, is 90"),
        (ElasticBatchSampler(100, 10, seed=1), "seed was 0, is 1"),
        (ElasticBatchSampler(100, 10, shuffle=False), "shuffle was True, is False"),
    ],
)
def test_other_data_is_refused(other: ElasticBatchSampler, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(ElasticBatchSampler(100, 10).state_dict())


def test_what_makes_no_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        ElasticBatchSampler(0, 1)
    with pytest.raises(ValueError, match="size is 0"):
        ElasticBatchSampler(5, 0)
    with pytest.raises(ValueError, match="nothing would be left"):
        ElasticBatchSampler(5, 6, drop_last=True)


# --- in a loop -----------------------------------------------------------------------------------


def train(
    run: Run, snapshots: Snapshots, batches: ElasticBatchSampler, stop_at: int | None = None
) -> list[list[int]]:
    """Train for two epochs, or until the step `stop_at`; return the samples of each step."""
    seen = []
    loader = DataLoader(Numbers(batches.samples), batch_sampler=batches)
    loop = Loop(run.model, run.optimizer, loader=loader, epochs=2, snapshots=snapshots)
    for step in loop:
        if step.number == stop_at:
            break
        with step:
            run.optimizer.zero_grad()
            numbers: list[int] = []
            for part in step.parts():
                numbers += part.tolist()
                step.backward(loop.model(part[:, None].float().expand(-1, 3)).square().mean())
            run.optimizer.step()
        snapshots.wait()  # else the next one may be left out
        seen.append(numbers)
    return seen


@pytest.fixture
def every_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPJOB_SNAPSHOT_EVERY", "3")


@pytest.mark.usefixtures("every_third")
def test_a_loop_resumes_within_an_epoch(tmp_path: Path) -> None:
    undisturbed = Run()
    whole = train(
        undisturbed,
        Snapshots(tmp_path / "whole"),
        ElasticBatchSampler(50, 8, max_samples_per_rank=3),
    )
    assert [sorted(itertools.chain(*whole[i : i + 7])) for i in (0, 7)] == [[*range(50)]] * 2
    run = Run()
    first = train(
        run,
        Snapshots(tmp_path / "broken"),
        ElasticBatchSampler(50, 8, max_samples_per_rank=3),
        stop_at=10,
    )
    leave()
    again = Run(seed=1)
    second = train(
        again, Snapshots(tmp_path / "broken"), ElasticBatchSampler(50, 8, max_samples_per_rank=3)
    )
    assert first + second == whole, "a loop that is left saves its last step"
    assert_same(undisturbed.weights(), again.weights())


@pytest.mark.usefixtures("every_third")
def test_a_snapshot_of_other_data_is_reported(tmp_path: Path) -> None:
    train(Run(), Snapshots(tmp_path), ElasticBatchSampler(50, 8), stop_at=4)
    leave()
    with pytest.raises(SnapshotError, match="samples was 50, is 40"):
        train(Run(), Snapshots(tmp_path), ElasticBatchSampler(40, 8))


def test_a_loop_explains_wrong_use(tmp_path: Path) -> None:
    run = Run()
    with pytest.raises(TypeError, match="batch_sampler=ElasticBatchSampler"):
        Loop(run.model, run.optimizer, loader=DataLoader(Numbers(5)), epochs=1)
    with pytest.raises(ValueError, match="either steps, or epochs"):
        Loop(run.model, run.optimizer)
    loader = DataLoader(Numbers(5), batch_sampler=ElasticBatchSampler(5, 2))
    [step, *_] = [*itertools.islice(Loop(run.model, run.optimizer, loader=loader, steps=9), 1)]
    step.__enter__()
    with pytest.raises(RuntimeError, match="all of its parts"):
        step.__exit__(None, None, None)
