"""When schedulers step, and on which metric; the signals of ranks that change their group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop, Stream
from support.forked import Forks
from support.live_worker import live_worker

SAMPLES = 12
EPOCHS = 3


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def optimizer_of(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=1.0)


def loader_of(kind: str) -> Any:
    data = list(torch.ones(SAMPLES, 1))
    if kind == "stream":
        return Stream(DataLoader(data, batch_size=4, collate_fn=list))  # type: ignore[arg-type]
    return DataLoader(data, batch_sampler=ElasticBatchSampler(data, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_scheduler_per_epoch(kind: str) -> None:
    net = torch.nn.Linear(1, 1)
    optimizers = [optimizer_of(net)]
    schedulers = [StepLR(optimizers[0], 1, 0.5)]
    loop = Loop(
        net, optimizers[0], loader=loader_of(kind), epochs=EPOCHS,
        scheduler=schedulers, scheduler_every="epoch",
    )  # fmt: skip
    seen = []
    for step in loop:
        with step:
            rate = optimizers[0].param_groups[0]["lr"]
            epoch, early = step.epoch, step.ends_epoch if kind == "map" else None
            for part in step.parts():
                step.backward(loop.model(part).sum())
            optimizers[0].step()
        assert step.epoch == epoch
        assert early in (None, step.ends_epoch)
        seen.append((epoch, rate, step.ends_epoch))
    assert seen == [
        (epoch, 0.5**epoch, number == 2) for epoch in range(EPOCHS) for number in range(3)
    ]


def steps_of(loop: Loop, net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    for step in loop:
        with step:
            loop.model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        yield step


def test_a_metric_counts_at_the_end_of_the_step_after_the_next_one() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = optimizer_of(net)
    loop = Loop(net, optimizer, steps=12, scheduler=ReduceLROnPlateau(optimizer, patience=0))
    rates = []
    for step in steps_of(loop, net, optimizer):
        if step.number in (2, 5):
            loop.metric(1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0] * 7 + [pytest.approx(0.1)] * 5


def test_what_does_not_fit_is_refused() -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = optimizer_of(net)
    scheduler = StepLR(optimizer, 1)
    for every, words in (("epoch", "needs a loader"), ("week", "'week': use \"step\"")):
        with pytest.raises(ValueError, match=words):
            Loop(net, optimizer, steps=1, scheduler=scheduler, scheduler_every=every)
    loop = Loop(net, optimizer, steps=1, scheduler=scheduler)
    with pytest.raises(RuntimeError, match="is for ReduceLROnPlateau"):
        loop.metric(1.0)
    source = loader_of("stream")
    loop = Loop(net, optimizer, loader=source, epochs=1)
    step = next(iter(loop))
    with pytest.raises(RuntimeError, match="Ask after `with step:`"):
        _ = step.ends_epoch


@pytest.mark.parametrize("place", ["within", "between"])
def test_a_script_that_steps_the_scheduler_too_is_refused(place: str) -> None:
    net = torch.nn.Linear(1, 1)
    optimizer = optimizer_of(net)
    scheduler = StepLR(optimizer, 1)
    loop = Loop(net, optimizer, steps=9, scheduler=scheduler)

    def train() -> None:
        for step in loop:
            with step:
                optimizer.step()
                if place == "within":
                    scheduler.step()
            if place == "between":
                scheduler.step()

    with pytest.raises(RuntimeError, match=r"the script calls scheduler.step\(\)"):
        train()


PLATEAU = """
from torch.optim.lr_scheduler import ReduceLROnPlateau
scheduler = ReduceLROnPlateau(optimizer, patience=0)
loop = Loop(net, optimizer, steps=40, scheduler=scheduler)
for step in loop:
    with step:
        if step.number == CHANGE and step.rank == 1 and not pathlib.Path("go").exists():
            wait_for("go")
        train(loop, step)
    if step.done and step.number in (10, 20) and step.rank == 0:
        loop.metric(float(step.number))
    if step.done:
        tell(step=step.number, rate=optimizer.param_groups[0]["lr"], best=scheduler.best)
"""


@pytest.mark.parametrize("change", [21, 22, 23])
def test_one_ranks_metric_counts_once_on_all_in_spite_of_a_change(
    forks: Forks, tmp_path: Path, change: int
) -> None:
    """Rank 1 is cut off in a step near the one that the second metric belongs to."""

    async def body() -> None:
        async with live_worker(tmp_path, forks, f"CHANGE = {change}{PLATEAU}") as worker:
            await worker.until((tmp_path / "waits-go").exists, "the step")
            worker.assign(2)
            (tmp_path / "go").touch()
            assert await worker.codes() == [0, 0], worker.story()
            first, second = ({row["step"]: row for row in worker.rows(rank)} for rank in (0, 1))
            assert first == second
            assert [first[step]["best"] for step in (11, 12, 39)] == [float("inf"), 10, 10]
            rates = [first[step]["rate"] for step in (21, 23, 39)]
            assert rates == [0.1, pytest.approx(0.01), pytest.approx(0.01)]

    asyncio.run(body())
