"""Objects wrapped by DDP, torch.compile, Accelerate or Fabric are saved without the wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import SnapshotError, Snapshots
from ddpjob_trainer.__main__ import main
from trainer.runs import Run, assert_same


def loaded(tmp_path: Path, run: Run, **parts: Any) -> Any:
    return Snapshots(tmp_path).load(**{**run.parts(), **parts})


def nested(run: Run, *, compiled: bool) -> torch.nn.Module:
    """The run's model with a compiled layer, compiled again as a whole."""
    if compiled:
        run.model[2] = torch.compile(run.model[2])  # type: ignore[assignment]
        return torch.compile(run.model)  # type: ignore[return-value]
    return run.model


@pytest.mark.parametrize("first", [True, False])
def test_a_compiled_models_snapshot_loads_into_a_plain_one_and_the_reverse(
    tmp_path: Path, *, first: bool
) -> None:
    run, again = Run(), Run(seed=1)
    run.train(2)
    weights = run.weights()
    Snapshots(tmp_path / "of").save(
        2, model=nested(run, compiled=first), optimizer=run.optimizer, wait=True
    )
    model = nested(again, compiled=not first)
    assert loaded(tmp_path / "of", again, model=model) is not None
    assert_same([*again.weights().values()], [*weights.values()])
    assert_same(again.optimizer.state_dict(), run.optimizer.state_dict())
    assert main(["export", str(tmp_path / "of"), str(tmp_path / "file")]) == 0
    assert_same(torch.load(tmp_path / "file"), dict(weights))


def test_module_versions_of_a_compiled_model_are_those_of_the_plain_one(tmp_path: Path) -> None:
    run, seen = Run(), []
    model = nested(run, compiled=True)
    Snapshots(tmp_path).save(1, model=model, wait=True)
    plain = Run()
    plain.model[1].register_load_state_dict_pre_hook(
        lambda _module, _state, _prefix, metadata, *_rest: seen.append(metadata)
    )
    Snapshots(tmp_path).load(model=plain.model)
    run.model[1].register_load_state_dict_pre_hook(
        lambda _module, _state, _prefix, metadata, *_rest: seen.append(metadata)
    )
    Snapshots(tmp_path).load(model=model)
    assert seen == [{"version": 2}] * 2


@pytest.mark.usefixtures("group")
def test_a_wrapper_inside_of_the_model_leaves_no_name(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self, run: Run, *, wrapped: bool) -> None:
            super().__init__()
            self.net = DistributedDataParallel(run.model) if wrapped else run.model

    run, again = Run(), Run(seed=1)
    Snapshots(tmp_path).save(1, model=Net(run, wrapped=True), wait=True)
    Snapshots(tmp_path).load(model=Net(again, wrapped=False))
    assert_same(again.weights(), run.weights())


def accelerated(run: Run) -> dict[str, Any]:
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    prepared = Accelerator(cpu=True).prepare(run.model, run.optimizer, schedule)
    return dict(zip(("model", "optimizer", "scheduler"), prepared, strict=True))


def of_fabric(run: Run) -> dict[str, Any]:
    fabric = Fabric(accelerator="cpu", devices=1, plugins=LightningEnvironment())
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    model, optimizer = fabric.setup(run.model, run.optimizer)
    return {"model": model, "optimizer": optimizer, "scheduler": schedule}


@pytest.mark.parametrize("wrapped", [accelerated, of_fabric])
def test_what_a_library_has_wrapped_is_saved_as_if_it_had_not(
    tmp_path: Path, run: Run, wrapped: Any
) -> None:
    parts, snapshots = wrapped(run), Snapshots(tmp_path)
    assert snapshots.load(**parts) is None
    for _ in range(2):
        parts["optimizer"].zero_grad()
        parts["model"](torch.randn(8, 3)).square().sum().backward()
        parts["optimizer"].step()
    assert snapshots.save(2, **parts)
    parts["optimizer"].step()  # waits for the copy
    snapshots.wait()
    plain = Run(seed=1)
    schedule = torch.optim.lr_scheduler.StepLR(plain.optimizer, 1)
    again = Snapshots(tmp_path)
    assert again.load(**plain.parts(), scheduler=schedule) is not None
    again.save(3, **plain.parts(), scheduler=schedule, wait=True)
    assert snapshots.load(**parts) is not None
    assert_same(run.weights(), plain.weights())


def test_several_optimizers_are_one_list(tmp_path: Path) -> None:
    def both(run: Run) -> dict[str, Any]:
        first, second = [*run.model.parameters()][:2], [*run.model.parameters()][2:]
        return {
            "model": run.model,
            "optimizer": [torch.optim.Adam(first), torch.optim.SGD(second, momentum=0.9)],
        }

    run, again = Run(), Run(seed=1)
    parts, others = both(run), both(again)
    run.model(torch.randn(8, 3)).square().sum().backward()
    for each in parts["optimizer"]:
        each.step()
    Snapshots(tmp_path).save(1, **parts, wait=True)
    Snapshots(tmp_path).load(**others)
    for one, other in zip(parts["optimizer"], others["optimizer"], strict=True):
        assert_same(one.state_dict(), other.state_dict())
    with pytest.raises(SnapshotError, match="its optimizer was Adam, SGD, the script's is SGD, Ad"):
        Snapshots(tmp_path).load(model=again.model, optimizer=others["optimizer"][::-1])
