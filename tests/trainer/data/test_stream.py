"""Data without an index: every rank reads the same batches, and each sample is trained on once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from ddpjob_trainer import Loop, Stream
from trainer.runs import Run


class Lines(IterableDataset[int]):
    """0, 1, 2, ..., other ones in each epoch; counts how many it has given."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._epoch = 0
        self.given = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        loading = get_worker_info()
        mine = range(self._count)
        for i in mine[loading.id :: loading.num_workers] if loading else mine:
            self.given += 1
            yield 1000 * self._epoch + i


def loader(count: int, size: int, **options: Any) -> DataLoader[int]:
    return DataLoader(Lines(count), batch_size=size, collate_fn=list, **options)


def be(patch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    patch.setenv("RANK", str(rank))
    patch.setenv("WORLD_SIZE", str(world_size))


def take(stream: Stream) -> list[int]:
    """Return this rank's share of the next batch, without ghosts of weight 0."""
    taken: list[int] = []
    for samples in stream:
        with stream.part() as part:
            taken += samples.tolist() if part.weight else []
        if part.is_last:
            return taken
    raise AssertionError("the epoch has ended")


@given(
    samples=st.integers(1, 40),
    size=st.integers(1, 15),
    most=st.none() | st.integers(1, 4),
    worlds=st.lists(st.integers(1, 4), min_size=1, max_size=6),
)
def test_every_sample_of_an_epoch_once(
    samples: int, size: int, most: int | None, worlds: list[int]
) -> None:
    """The ranks stay, and are more or fewer at each step; a new rank gets a survivor's state."""
    with pytest.MonkeyPatch.context() as patch:
        streams = [Stream(loader(samples, size), max_samples_per_rank=most)]
        seen: list[int] = []
        for world_size in itertools.cycle(worlds):
            if not streams[0].has_more(1):
                break
            streams = streams[:world_size]
            while len(streams) < world_size:
                streams.append(Stream(loader(samples, size), max_samples_per_rank=most))
                streams[-1].load_state_dict(streams[0].state_dict())
            batch: list[int] = []
            for rank, stream in enumerate(streams):
                be(patch, rank, world_size)
                batch += take(stream)
            assert batch == sorted(batch)
            seen += batch
    assert seen == [*range(samples)]


@pytest.mark.parametrize(("workers", "size"), [(0, 10), (1, 10), (2, 8)])
def test_resumes_within_the_second_epoch(workers: int, size: int) -> None:
    before = Stream(loader(50, 8, num_workers=workers))
    while before.has_more(1):
        take(before)
    assert before.has_more(2)
    seen = take(before) + take(before)
    after = Stream(loader(50, size, num_workers=workers))
    after.load_state_dict(before.state_dict())
    while after.has_more(2):
        seen += take(after)
    assert sorted(seen) == sorted(set(seen)), "each once"
    assert len(seen) == 50
    assert min(seen) >= 1000


def test_who_is_a_step_behind_reads_on() -> None:
    ahead, behind = (Stream(loader(50, 8)) for _ in range(2))
    take(ahead)
    take(behind)
    take(ahead)
    behind.share()  # has read the batch that it did not get done
    given = behind._loader.dataset.given  # type: ignore[attr-defined]
    behind.load_state_dict(ahead.state_dict())
    assert take(behind) == take(ahead) == [*range(16, 24)]
    assert behind._loader.dataset.given == given + 8  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's business
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("held", [False, True])
def test_a_loader_that_knows_where_it_is_reads_nothing_twice(workers: int, held: bool) -> None:
    """torchdata's; with a batch in hand that has not been trained on, or without."""

    def stateful() -> StatefulDataLoader:
        return StatefulDataLoader(
            [*range(50)], batch_size=8, shuffle=True, collate_fn=list, num_workers=workers,
            generator=torch.Generator().manual_seed(4),
        )  # fmt: skip

    before = Stream(stateful())
    seen = [*take(before), *take(before), *take(before)]
    if held:
        before.share()
    after = Stream(stateful())
    after.load_state_dict(before.state_dict())
    while after.has_more(1):
        seen += take(after)
    assert sorted(seen) == [*range(50)]


def test_what_gives_no_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing in a whole epoch"):
        Stream(loader(0, 8)).has_more(1)
    with pytest.raises(TypeError, match="gives a Tensor where a list of samples"):
        Stream(DataLoader(Lines(9), batch_size=3)).has_more(1)
    with pytest.raises(ValueError, match="max_samples_per_rank is 0"):
        Stream(loader(9, 3), max_samples_per_rank=0)
    short = Stream(loader(9, 3))
    short.load_state_dict({"epoch": 0, "position": 12, "loader": None})
    with pytest.raises(ValueError, match="ends 3 samples before"):
        short.has_more(1)
    forgetful = Stream(loader(9, 3))
    with pytest.raises(RuntimeError, match=r"with stream\.part"):
        list(forgetful)


def test_a_loop_over_a_stream_ends_with_it() -> None:
    run, seen = Run(), []
    stream = Stream(loader(20, 8), max_samples_per_rank=4)
    loop = Loop(run.model, run.optimizer, loader=stream, epochs=2)
    for step in loop:
        with step:
            run.optimizer.zero_grad()
            for part in step.parts():
                seen.append(part.tolist())
                step.backward(loop.model(part[:, None].float().expand(-1, 3)).square().mean())
            run.optimizer.step()
    assert sorted(itertools.chain(*seen)) == [*range(20), *range(1000, 1020)]
    assert step.number == 5


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_several_batches_are_one(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """`Loop(..., accumulate=2)`: each sample once, and no part is larger than before."""
    taken: list[int] = []
    for rank in range(ranks):
        be(monkeypatch, rank, ranks)
        stream = Stream(loader(10, 3))
        stream.accumulate = 2
        batches = 0
        while stream.has_more(1):
            share = stream.share()
            assert max(share.parts) <= -(-3 // ranks)
            taken += take(stream)
            batches += 1
        assert batches == 2
    assert sorted(taken) == list(range(10))


class OfOneNode(Lines):
    """The result of Hugging Face's split_dataset_by_node()."""

    def __init__(self, world_size: int) -> None:
        super().__init__(8)
        self._distributed = SimpleNamespace(rank=0, world_size=world_size)


def test_a_loader_of_one_ranks_samples_is_refused() -> None:
    numbers: Any = [*range(8)]
    sampler: Any = DistributedSampler(numbers, num_replicas=2, rank=0)
    for own in (
        DataLoader(numbers, batch_size=2, collate_fn=list, sampler=sampler),
        DataLoader(OfOneNode(2), batch_size=2, collate_fn=list),
    ):
        with pytest.raises(ValueError, match="Give a loader of the whole data"):
            Stream(own)
    with pytest.raises(ValueError, match="the ranks would read different batches"):
        Stream(DataLoader(numbers, batch_size=2, collate_fn=list, shuffle=True))
    one_seed = torch.Generator().manual_seed(0)
    Stream(DataLoader(numbers, batch_size=2, collate_fn=list, shuffle=True, generator=one_seed))
    Stream(DataLoader(OfOneNode(1), batch_size=2, collate_fn=list))
