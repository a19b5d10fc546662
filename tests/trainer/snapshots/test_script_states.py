"""A state that scripts give to save() and load() works, or it is refused before the first step."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddpjob_trainer import ElasticBatchSampler, Loop, SnapshotError, Snapshots
from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
from trainer.runs import Counter, Run
from trainer.snapshots.layout import folder_of, manifest_in, replace_manifest


def loaded(tmp_path: Path, run: Run, **parts: Any) -> Any:
    return Snapshots(tmp_path).load(**{**run.parts(), **parts})


def train(
    run: Run, steps: int, *, on_step: Callable[[int], None] = lambda _: None, **options: Any
) -> None:
    """Train in a Loop."""
    loop = Loop(run.model, run.optimizer, steps=steps, **options)
    for step in loop:
        with step:
            on_step(step.number)
            loop.model(torch.randn(8, 3)).square().sum().backward()
            run.optimizer.step()


# --- refused at once --------------------------------------------------------------------------------


def test_a_learning_rate_from_numpy_is_saved(tmp_path: Path, run: Run) -> None:
    def schedule_of(run: Run) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(
            run.optimizer, lambda step: 0.5 * (1 + np.cos(math.pi * step / 10))
        )

    schedule = schedule_of(run)
    run.train(1)
    schedule.step()
    rate = run.optimizer.param_groups[0]["lr"]
    assert isinstance(rate, np.floating)
    Snapshots(tmp_path).save(1, **run.parts(), scheduler=schedule, wait=True)
    again = Run()
    loaded(tmp_path, again, scheduler=schedule_of(again))
    assert again.optimizer.param_groups[0]["lr"] == rate


def test_load_refuses_a_state_that_cannot_be_saved(tmp_path: Path, run: Run) -> None:
    run.optimizer.param_groups[0]["mode"] = object()
    with pytest.raises(SnapshotError, match=r"optimizer\.param_groups\[0\]\.mode is a builtins"):
        loaded(tmp_path, run)


class Odd(torch.optim.SGD):
    """An optimizer that gets a state that cannot be saved in its first step."""

    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        self.state[self.param_groups[0]["params"][0]]["cache"] = object()
        return found


def test_a_state_that_appears_in_the_first_step_is_refused_after_it(
    tmp_path: Path, run: Run
) -> None:
    run.optimizer = Odd(run.model.parameters(), lr=0.1)
    snapshots = Snapshots(tmp_path)
    snapshots.load(**run.parts())
    run.train(1)
    with pytest.raises(SnapshotError, match=r"optimizer\.state\[0\]\.cache is a builtins"):
        snapshots.due(1)


def test_a_rank_that_does_not_write_refuses_at_the_first_save(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SnapshotError, match=r"extra\.best is a builtins\.complex"):
        Snapshots(tmp_path).save(1, **run.parts(), extra={"best": 1j})


class OddExtra(Counter):
    """A user's state that cannot be saved."""

    def state_dict(self) -> Any:
        return {"value": self}


def test_a_loop_refuses_before_its_first_step_and_after_it(run: Run) -> None:
    with pytest.raises(SnapshotError, match=r"extra\.value is a .*OddExtra"):
        Loop(run.model, run.optimizer, steps=1, extra=OddExtra())
    run.optimizer = Odd(run.model.parameters(), lr=0.1)
    steps: list[int] = []
    with pytest.raises(SnapshotError, match=r"optimizer\.state\[0\]\.cache is a builtins"):
        train(run, 9, on_step=steps.append)
    assert steps == [0]
    distributed.destroy_process_group()


def test_load_before_the_process_group_is_refused(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SnapshotError, match=r"WORLD_SIZE is 2.*init_process_group\(\) first"):
        loaded(tmp_path, run)


def test_ranks_with_one_directory_are_found_again_once_there_is_a_group(
    tmp_path: Path, run: Run, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    find = SnapshotStorage.group

    def finding(storage: SnapshotStorage) -> Any:
        seen.append(distributed.is_initialized())
        return find(storage)

    monkeypatch.setattr(SnapshotStorage, "group", finding)
    snapshots = Snapshots(tmp_path)
    snapshots.load(**run.parts())
    request.getfixturevalue("group")
    snapshots.load(**run.parts())
    snapshots.load(**run.parts())
    assert seen == [False, True]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *itertools.product(["FSDP1", "ZeroRedundancyOptimizer"], ["load", "save", "Loop"]),
        ("a DTensor", "Loop"),
    ],
)
def test_a_state_that_is_spread_over_ranks_is_refused(
    tmp_path: Path, run: Run, kind: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = run.model
    if kind == "FSDP1":
        with pytest.warns(match="since the world size is 1"):
            model = FullyShardedDataParallel(run.first, device_id=torch.device("cpu"))
    elif kind == "a DTensor":
        fully_shard(run.first, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind == "ZeroRedundancyOptimizer":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    monkeypatch.setenv("RANK", "1")
    snapshots = Snapshots(tmp_path)
    uses: dict[str, Callable[[], object]] = {
        "load": lambda: snapshots.load(model=model, optimizer=optimizer),
        "save": lambda: snapshots.save(1, model=model, optimizer=optimizer),
        "Loop": lambda: Loop(model, optimizer, steps=1),
    }
    remedy = "Use Snapshots without a Loop" if kind == "a DTensor" else "examples/12-fsdp"
    with pytest.raises(SnapshotError, match=f"{kind}.* {remedy}"):
        uses[where]()
    assert list(tmp_path.iterdir()) == []


# --- a changed script -------------------------------------------------------------------------------


def square() -> Run:
    """A model with two layers of one shape."""
    run = Run()
    run.model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    run.optimizer = torch.optim.Adam(run.model.parameters())
    return run


def test_another_order_of_parameters_is_refused(tmp_path: Path) -> None:
    run = square()
    run.train(2)
    Snapshots(tmp_path).save(2, **run.parts(), wait=True)
    again = square()
    again.optimizer = torch.optim.Adam(reversed([*again.model.parameters()]))
    with pytest.raises(
        SnapshotError,
        match=r"parameter 0 of its optimizer was 0\.weight in group 0, the script's is 1\.bias",
    ):
        loaded(tmp_path, again)
    again.optimizer = torch.optim.Adam(
        [{"params": again.model[0].parameters()}, {"params": again.model[1].parameters()}]
    )
    with pytest.raises(
        SnapshotError, match=r"was 1\.weight in group 0, .* is 1\.weight in group 1"
    ):
        loaded(tmp_path, again)
    again.optimizer = torch.optim.Adam([*again.model.parameters()][:-1])
    with pytest.raises(SnapshotError, match="had 4 parameters, the script's has 3"):
        loaded(tmp_path, again)


@pytest.mark.parametrize(
    ("saved", "given", "message"),
    [(None, Counter(), "it has no `extra`"), (Counter(), None, "it has an `extra`")],
    ids=["added", "removed"],
)
def test_extra_that_is_added_or_removed_is_refused(
    tmp_path: Path, saved: Counter | None, given: Counter | None, message: str
) -> None:
    def with_extra(extra: Counter | None, steps: int) -> None:
        train(Run(), steps, extra=extra, snapshots=Snapshots(tmp_path))

    with_extra(saved, 1)
    with pytest.raises(SnapshotError, match=message):
        with_extra(given, 2)
    distributed.destroy_process_group()


def test_a_position_in_the_data_that_nobody_takes_is_a_warning(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    data = ElasticBatchSampler(range(8), 4)
    Snapshots(tmp_path).save(1, **run.parts(), data=data, wait=True)
    with caplog.at_level(logging.WARNING, "ddpjob"):
        Snapshots(tmp_path).load(model=run.model)
        loaded(tmp_path, run, data=data)
        assert caplog.text == ""
        loaded(tmp_path, run)
    assert "has a state of `data` (ElasticBatchSampler), which load() was not given" in caplog.text


# --- a crafted snapshot -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "node"),
    [
        ("model", {"dict": [[1, 2]]}),
        ("model", {"dict": [[[], 2]]}),
        ("types", {"dict": [["optimizer", 5]]}),
        ("types", {"dict": [["lost", "SGD"]]}),
        ("versions", 5),
        ("random", {"dict": [["torch", "zz"]]}),
        ("random", {"dict": [["torch", "00"], ["python", [1]]]}),
        ("extra", {"float": 10**400}),
        ("extra", None),
        ("types", None),
    ],
    ids=str,
)
def test_a_crafted_state_is_unusable_and_an_older_snapshot_counts(
    tmp_path: Path, run: Run, part: str, node: Any
) -> None:
    snapshots = Snapshots(tmp_path)
    for step in (1, 2):
        snapshots.save(step, **run.parts(), wait=True)
    folder = folder_of(tmp_path, 2)
    content = json.loads(manifest_in(folder).read_text())
    if node is None:
        del content["state"][part]
    else:
        content["state"][part] = node
    craft(folder, content)
    found = loaded(tmp_path, run)
    assert found is not None
    assert found.step == 1


@pytest.mark.parametrize("part", ["optimizer", "parameters"])
def test_a_crafted_optimizer_is_a_snapshot_error(tmp_path: Path, run: Run, part: str) -> None:
    Snapshots(tmp_path).save(1, **run.parts(), wait=True)
    folder = folder_of(tmp_path, 1)
    content = json.loads(manifest_in(folder).read_text())
    content["state"][part] = {"dict": [["state", [5]], ["param_groups", [[1], 2]]]}
    craft(folder, content)
    with pytest.raises(SnapshotError):
        loaded(tmp_path, run)


def craft(folder: Path, content: dict[str, Any]) -> None:
    """Write a manifest of this content, with the right checksum."""
    replace_manifest(folder, json.dumps(content).encode())
