"""Optimizers and schedulers that a script trains with, and does not save, are found."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpjob_trainer import SnapshotError, Snapshots
from trainer.runs import Run


def adam(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), **options)


def step(*optimizers: torch.optim.Optimizer) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()


@pytest.fixture
def models() -> nn.ModuleDict:
    return nn.ModuleDict({"generator": nn.Linear(1, 1), "critic": nn.Linear(1, 1)})


def test_a_second_optimizer_of_the_model_must_be_saved(
    tmp_path: Path, models: nn.ModuleDict
) -> None:
    first, second = adam(models["generator"]), adam(models["critic"])
    snapshots = Snapshots(tmp_path)
    snapshots.load(model=models, optimizer=first)
    step(first, second)
    with pytest.raises(SnapshotError, match=r"\(Adam\) of 2 parameters of the model") as error:
        snapshots.save(1, model=models, optimizer=first)
    assert "optimizer=[first, second]" in str(error.value)
    step(first, second)
    assert snapshots.save(2, model=models, optimizer=[first, second], wait=True)


class Averaging(torch.optim.SGD):
    """An optimizer that wraps another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, lr=0.1)
        self.inner = inner


@pytest.mark.parametrize("habit", ["stateless", "earlier", "extra", "inside"])
def test_an_optimizer_whose_state_is_not_lost_may_be_left_out(
    tmp_path: Path, models: nn.ModuleDict, habit: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved, other = adam(models), adam(models["critic"])
    extra = {"other": 1} if habit == "extra" else None
    if habit == "stateless":
        other = torch.optim.SGD(models["critic"].parameters(), lr=0.1)
    elif habit == "inside":
        saved = Averaging(other)
    snapshots = Snapshots(tmp_path)
    snapshots.load(model=models, optimizer=saved)
    if habit == "earlier":
        step(other)
        snapshots.save(1, model=models, optimizer=saved, extra={}, wait=True)
        step(saved)
    else:
        step(saved, other)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        assert snapshots.save(2, model=models, optimizer=saved, extra=extra, wait=True)
    assert not caplog.messages


def test_two_snapshots_of_two_models_are_whole(
    tmp_path: Path, models: nn.ModuleDict, caplog: pytest.LogCaptureFixture
) -> None:
    parts: list[tuple[Snapshots, dict[str, Any]]] = [
        (Snapshots(tmp_path / name), {"model": each, "optimizer": adam(each)})
        for name, each in models.items()
    ]
    for snapshots, part in parts:
        snapshots.load(**part)
    step(*(part["optimizer"] for _, part in parts))
    with caplog.at_level(logging.WARNING, "ddpjob"):
        for snapshots, part in parts:
            assert snapshots.save(1, **part, wait=True)
    assert not caplog.messages


def test_a_model_in_no_snapshot_is_reported_once(
    tmp_path: Path, models: nn.ModuleDict, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = adam(models["generator"]), adam(models["critic"])
    snapshots = Snapshots(tmp_path)
    snapshots.load(model=models["generator"], optimizer=first)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        for number in (1, 2):
            step(first, second)
            snapshots.save(number, model=models["generator"], optimizer=first, wait=True)
    (text,) = caplog.messages
    assert "trains parameters that are in no snapshot" in text


def test_a_scheduler_that_is_not_saved_is_reported_once(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    snapshots = Snapshots(tmp_path)
    snapshots.load(**run.parts())
    with caplog.at_level(logging.WARNING, "ddpjob"):
        for number in (1, 2):
            run.train(1)
            scheduler.step()
            snapshots.save(number, **run.parts(), wait=True)
    (text,) = caplog.messages
    assert "scheduler=scheduler" in text
