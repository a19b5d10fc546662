"""A load returns the saved state, and a mismatch is explained."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR, ENV_SNAPSHOT_EVERY, ENV_SNAPSHOT_KEEP
from ddpjob_trainer import Loaded, SnapshotError, Snapshots
from ddpjob_trainer.snapshots.model.manifest import candidate_of
from trainer.runs import Run, assert_same
from trainer.snapshots.layout import storage_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.conftest import Listener

lr_scheduler = torch.optim.lr_scheduler

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), betas=(0.8, 0.99), amsgrad=True),
    "AdamW, two groups": lambda p: torch.optim.AdamW(
        [{"params": next(p)}, {"params": list(p), "lr": 0.3}],
        lr=0.01,
    ),
    "Rprop": torch.optim.Rprop,
    "LBFGS": torch.optim.LBFGS,
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=50),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], [3]
    ),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}


def train(run: Run, scheduler: Any, first: int) -> None:
    for step in range(first, first + 5):
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))

        def loss(inputs: torch.Tensor = inputs) -> Any:
            run.optimizer.zero_grad()
            value: Any = run.model(inputs).square().mean()
            value.backward()
            return value

        run.optimizer.step(loss)
        metrics = (1.0,) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else ()
        if scheduler is not None:
            scheduler.step(*metrics)


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [(name, None) for name in OPTIMIZERS] + [("SGD", name) for name in SCHEDULERS],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, optimizer: str, scheduler: str | None
) -> None:
    def start(seed: int) -> tuple[Run, Any]:
        run = Run(seed)
        run.optimizer = OPTIMIZERS[optimizer](run.model.parameters())
        return run, scheduler and SCHEDULERS[scheduler](run.optimizer)

    run, schedule = start(0)
    train(run, schedule, 0)
    Snapshots(tmp_path).save(5, **run.parts(), scheduler=schedule, wait=True)
    resumed, resumed_schedule = start(1)
    assert Snapshots(tmp_path).load(**resumed.parts(), scheduler=resumed_schedule) == Loaded(
        5, None
    )
    assert_same(resumed.optimizer.state_dict(), run.optimizer.state_dict())
    if scheduler:
        assert_same(resumed_schedule.state_dict(), schedule.state_dict())
    train(run, schedule, 5)
    train(resumed, resumed_schedule, 5)
    assert_same(resumed.weights(), run.weights())


def test_extra_comes_back(tmp_path: Path, run: Run) -> None:
    extra = {"best": 0.5, "seen": (1, None), "rng": torch.get_rng_state(), 3: float("-inf")}
    Snapshots(tmp_path).save(7, model=run.model, extra=extra, wait=True)
    loaded = Snapshots(tmp_path).load(model=run.model)
    assert loaded is not None
    assert loaded.step == 7
    assert_same(loaded.extra, extra)


def test_module_versions_are_kept_for_torch_to_migrate_by(tmp_path: Path, run: Run) -> None:
    seen: list[Any] = []
    Snapshots(tmp_path).save(1, model=run.model, wait=True)
    run.model[1].register_load_state_dict_pre_hook(
        lambda _module, _state, _prefix, metadata, *_rest: seen.append(metadata)
    )
    Snapshots(tmp_path).load(model=run.model)
    assert seen == [{"version": 2}]


def test_an_empty_or_missing_directory_is_a_fresh_start(
    tmp_path: Path, run: Run, listener: Listener
) -> None:
    before = run.weights()
    assert Snapshots(tmp_path).load(**run.parts()) is None
    assert Snapshots(tmp_path / "not" / "yet").load(**run.parts()) is None
    assert_same(run.weights(), before)
    assert listener.pending() == [{"event": "resumed", "step": 0}] * 2


def test_saving_and_loading_are_reported(tmp_path: Path, run: Run, listener: Listener) -> None:
    Snapshots(tmp_path).save(20, **run.parts(), wait=True)
    Snapshots(tmp_path).load(**run.parts())
    assert listener.pending() == [
        {"event": "saved", "step": 20},
        {"event": "resumed", "step": 20},
    ]


def test_the_job_gives_directory_interval_and_number(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_SNAPSHOT_DIR, str(tmp_path / "a" / "b"))
    monkeypatch.setenv(ENV_SNAPSHOT_EVERY, "2")
    monkeypatch.setenv(ENV_SNAPSHOT_KEEP, "2")
    snapshots = Snapshots()
    for step in filter(snapshots.due, range(9)):
        snapshots.save(step, **run.parts(), wait=True)
    names = {path.name for path in (tmp_path / "a" / "b").glob("step-*")}
    assert names == {"step-000000000006", "step-000000000008"}


def test_a_path_that_changes_later_is_that_of_the_start(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    snapshots = Snapshots("here")
    monkeypatch.chdir("/")
    snapshots.save(1, **run.parts(), wait=True)
    assert (tmp_path / "here" / "step-000000000001").is_dir()


def test_files_are_as_readable_as_the_umask_allows(tmp_path: Path, run: Run) -> None:
    before = os.umask(0o027)
    try:
        Snapshots(tmp_path).save(1, **run.parts(), wait=True)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("step-*/*/*")}
    assert modes == {0o640}


@pytest.mark.parametrize(
    ("environment", "keep", "message"),
    [
        ({}, None, r"Give the job a spec\.snapshot"),
        ({ENV_SNAPSHOT_DIR: "/x", ENV_SNAPSHOT_KEEP: "all"}, None, "KEEP is"),
        ({ENV_SNAPSHOT_DIR: "/x", ENV_SNAPSHOT_EVERY: "0"}, None, "EVERY is"),
        ({ENV_SNAPSHOT_DIR: "/x"}, 0, "at least one"),
    ],
    ids=["no directory", "keep", "every", "keep none"],
)
def test_wrong_settings_are_named(
    environment: dict[str, str], keep: int | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SnapshotError, match=message):
        Snapshots(keep=keep)


def other_shape() -> Run:
    return Run(width=5)


def other_names() -> Run:
    run = Run()
    run.model.append(torch.nn.Linear(2, 2))
    return run


def other_optimizer() -> Run:
    run = Run()
    run.optimizer = torch.optim.Adam(run.model.parameters())
    return run


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_shape, r"size mismatch for 0\.weight"),
        (other_names, r'Missing key.*"3\.weight"'),
        (other_optimizer, "its optimizer was SGD, the script's is Adam"),
    ],
)
def test_error_for_a_changed_script_names_the_difference_and_a_way_to_start_over(
    tmp_path: Path, run: Run, change: Callable[[], Run], message: str
) -> None:
    Snapshots(tmp_path).save(1, **run.parts(), wait=True)
    with pytest.raises(SnapshotError, match=message) as error:
        Snapshots(tmp_path).load(**change().parts())
    assert str(tmp_path / "step-000000000001") in str(error.value)
    assert f"mv {tmp_path} {tmp_path}.old" in str(error.value)


def test_a_snapshot_without_optimizer_is_not_taken_for_one_with(tmp_path: Path, run: Run) -> None:
    Snapshots(tmp_path).save(1, model=run.model, wait=True)
    with pytest.raises(SnapshotError, match="its optimizer was none"):
        Snapshots(tmp_path).load(**run.parts())


def test_a_refused_state_leaves_no_trace(tmp_path: Path, run: Run) -> None:
    run.optimizer.param_groups[0]["foo"] = object()
    with pytest.raises(SnapshotError, match=r"optimizer\.param_groups\[0\]\.foo"):
        Snapshots(tmp_path).save(1, **run.parts(), wait=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, 10**12])
def test_a_step_that_has_no_name_is_refused(tmp_path: Path, run: Run, step: int) -> None:
    with pytest.raises(ValueError, match=str(step)):
        Snapshots(tmp_path).save(step, **run.parts(), wait=True)


def noisy(run: Run, steps: int) -> list[float]:
    """Training that draws random numbers of all kinds."""
    drawn = []
    for _ in range(steps):
        inputs = torch.dropout(torch.ones(8, 3), 0.5, train=True) * random.random()
        run.optimizer.zero_grad()
        run.model(inputs * float(np.random.rand())).square().sum().backward()
        run.optimizer.step()
        drawn.append(inputs.sum().item())
    return drawn


@pytest.fixture(params=["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def numpys_generator(request: pytest.FixtureRequest) -> Iterator[None]:
    """NumPy's global one: the first unless a script sets another."""
    numpys: Any = np.random  # typed without these two
    before = numpys.get_bit_generator()
    numpys.set_bit_generator(getattr(np.random, request.param)(1))
    yield
    numpys.set_bit_generator(before)


@pytest.mark.usefixtures("numpys_generator")
def test_random_numbers_continue_where_they_were(tmp_path: Path) -> None:
    run = Run()
    torch.manual_seed(1)
    random.seed(1)
    noisy(run, 3)
    Snapshots(tmp_path).save(3, **run.parts(), wait=True)
    expected = noisy(run, 3)
    torch.manual_seed(7)
    again = Run(seed=5)
    Snapshots(tmp_path).load(**again.parts())
    assert noisy(again, 3) == expected
    assert_same(again.weights(), run.weights())


@pytest.mark.usefixtures("numpys_generator")
def test_other_ranks_draw_numbers_of_their_own(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Snapshots(tmp_path).save(3, **run.parts(), wait=True)
    drawn = []
    for rank in ("0", "1", "2", "2"):
        monkeypatch.setenv("RANK", rank)
        torch.manual_seed(int(rank) * 7)
        Snapshots(tmp_path).load(**run.parts())
        drawn.append((torch.rand(1).item(), random.random(), float(np.random.rand())))
    assert len({*drawn}) == 3
    assert drawn[2] == drawn[3]


def test_a_grad_scaler_comes_back(tmp_path: Path, run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(torch.ones(1))
    scaler.update(512.0)
    Snapshots(tmp_path).save(1, **run.parts(), scaler=scaler, wait=True)
    again = torch.amp.GradScaler("cpu")
    Snapshots(tmp_path).load(**run.parts(), scaler=again)
    assert again.get_scale() == 512.0


def test_copies_of_one_step_are_equal_on_ranks_with_other_random_numbers(tmp_path: Path) -> None:
    """No state is sent to a rank that has it; another state has another content."""
    digests = []
    for number, steps in enumerate((2, 2, 3)):
        run = Run()
        run.train(steps)
        torch.manual_seed(number)
        random.seed(number)
        Snapshots(tmp_path / str(number)).save(7, **run.parts(), wait=True)
        found = storage_in(tmp_path / str(number), 1).check(7)
        digests.append(candidate_of(found).digest)
    assert digests[0] == digests[1] != digests[2]
