"""Processes of unequal speed: shares by what is given, and by what is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop, Stream, scale_lr
from support.forked import Forks, environment
from trainer.runs import Run

SCRIPT = """
import json, os, pathlib, sys, time
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from ddpjob_trainer import ElasticBatchSampler, Loop

how, rank = sys.argv[1], int(os.environ["RANK"])
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.1  # loaders end with their process
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.arange(1000), torch.randn(1000, 3, dtype=torch.float64))

class Net(torch.nn.Linear):
    def forward(self, values):
        if how == "measured" and rank == 0:
            time.sleep(0.005 * len(values))
        return super().forward(values)

net = Net(3, 1).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
speed = None if how in ("equal", "measured") else [4.0, 1.0, 1.0][rank]
steps = []
if how == "by hand":
    distributed.init_process_group("gloo")
    batches = ElasticBatchSampler(data, 50, speed=speed)
    model = DistributedDataParallel(net)
    for ids, values in DataLoader(data, batch_sampler=batches, num_workers=1):
        with batches.part(model) as part:
            (model(values).square().mean() * part.weight).backward()
        assert part.is_last
        optimizer.step()
        optimizer.zero_grad()
        steps.append(ids.tolist())
else:
    batches = ElasticBatchSampler(data, 50, speed=speed)
    loader = DataLoader(data, batch_sampler=batches, num_workers=1)
    loop = Loop(net, optimizer, loader=loader, epochs=1, balance=how == "measured")
    for step in loop:
        with step:
            optimizer.zero_grad()
            for ids, values in step.parts():
                step.backward(loop.model(values).square().mean())
                steps.append(ids.tolist())
            optimizer.step()
result = {"steps": steps, "weights": [each.tolist() for each in net.parameters()]}
pathlib.Path(f"rank-{rank}").write_text(json.dumps(result))
os._exit(0)  # torch now and then aborts a process that has finished (docs/failures.md)
"""


class Trained(NamedTuple):
    """By three ranks: how many samples each had in each step, and what came of it."""

    counts: list[list[int]]
    weights: torch.Tensor
    order: list[int]


def train(forks: Forks, folder: Path, env: dict[str, str], how: str) -> Trained:
    (folder / "train.py").write_text(SCRIPT)
    command = ("--standalone", "--nproc-per-node=3", "train.py", how)
    assert forks.torchrun(*command, env=env, folder=folder).wait() == 0
    found = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(3)]
    steps = [*zip(*(each["steps"] for each in found), strict=True)]
    weights = [torch.tensor(each["weights"][0], dtype=torch.float64) for each in found]
    assert torch.equal(weights[0], weights[1])
    return Trained(
        [[*map(len, step)] for step in steps],
        weights[0],
        [i for step in steps for p in step for i in p],
    )


@pytest.fixture(scope="module")
def equal(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(forks, tmp_path_factory.mktemp("equal"), environment(), "equal")


@pytest.mark.parametrize("how", ["in a loop", "by hand"])
def test_shares_follow_the_speed_that_is_given(
    forks: Forks, tmp_path: Path, python_env: dict[str, str], equal: Trained, how: str
) -> None:
    """The rank that trains on a sample changes; the samples of a step and the result do not."""
    found = train(forks, tmp_path, python_env, how)
    assert equal.counts == [[17, 17, 16]] * 20
    assert found.counts == [[34, 9, 7]] * 20
    assert found.order == equal.order
    assert torch.allclose(found.weights, equal.weights, rtol=1e-9)


def test_shares_follow_the_speed_that_is_measured(
    forks: Forks, tmp_path: Path, python_env: dict[str, str], equal: Trained
) -> None:
    """Rank 0 takes 5 ms more for each sample."""
    found = train(forks, tmp_path, python_env, "measured")
    assert found.counts[0] == [17, 17, 16]
    assert found.counts[-1][0] < min(found.counts[-1][1:])
    assert found.order == equal.order
    assert torch.allclose(found.weights, equal.weights, rtol=1e-9)


def test_what_makes_no_speed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a number above 0"):
            ElasticBatchSampler(5, 1, speed=speed)
        with pytest.raises(ValueError, match="a number above 0"):
            Stream([], speed=speed)
    run, data = Run(), TensorDataset(torch.ones(2))
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 2))
    with pytest.raises(ValueError, match="balance needs a loader"):
        Loop(run.model, run.optimizer, steps=1, balance=True)
    with pytest.raises(ValueError, match="goes by time"):
        Loop(run.model, run.optimizer, loader=loader, epochs=1, balance=True, deterministic=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="after init_process_group"):
        ElasticBatchSampler(5, 1, speed=1.0).share()


# --- batches that grow with the number of processes ------------------------------------------------


def test_learning_rates_follow_the_size_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the step they are what the scheduler makes of them."""
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    batches = ElasticBatchSampler(100, 8, per_process=True)
    scale_lr(optimizer, batches, lambda size: size / 16)
    moved = []
    for world_size in (1, 2, 3):
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        weight.grad = torch.ones(1)
        before = weight.item()
        optimizer.step()
        scheduler.step()
        moved.append(before - weight.item())
    assert moved == [0.5, 0.5, 0.375]
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert scheduler.get_last_lr() == [0.125]


def test_a_batch_of_another_size_for_each_world_is_not_deterministic() -> None:
    run, data = Run(), TensorDataset(torch.ones(2))
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 2, per_process=True))
    with pytest.raises(ValueError, match="leave out per_process"):
        Loop(run.model, run.optimizer, loader=loader, epochs=1, deterministic=2)
