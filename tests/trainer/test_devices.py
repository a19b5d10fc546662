"""Tensors of the library are on the devices that it names, whatever torch's default device is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils import _device

import ddpjob_trainer
from ddpjob_trainer import ElasticBatchSampler, Snapshots
from ddpjob_trainer.data.orders import by_length, weighted
from ddpjob_trainer.tensors import rng_state
from support.forked import Forks
from trainer.runs import Run, assert_same

FOLDER = Path(ddpjob_trainer.__file__).parent
# torch's own list of functions that put a tensor on the default device.
CREATE = {function.__name__ for function in _device._device_constructors()}


def creations(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            if isinstance(of, ast.Name) and of.id == "torch" and node.func.attr in CREATE:
                yield node


def test_each_new_tensor_names_its_device() -> None:
    assert {"tensor", "empty", "zeros", "randperm", "as_tensor"} <= CREATE
    found, silent = 0, []
    for path in FOLDER.rglob("*.py"):
        for call in creations(ast.parse(path.read_text())):
            found += 1
            if not any(word.arg == "device" for word in call.keywords):
                silent.append(f"{path.relative_to(FOLDER)}:{call.lineno}: {ast.unparse(call)}")
    assert found > 20
    assert not silent, "set_default_device decides where these tensors are"


STEPS = """
import os, torch
from ddpjob_trainer import Loop, Stream
samples = [torch.randn(3) for _ in range(12)]
models = [torch.nn.Linear(3, 1) for _ in range(2)]
torch.set_default_device("meta")
for model, deterministic in zip(models, (None, 2)):
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = Stream([samples[:6], samples[6:]])
    loop = Loop(model, optimizer, loader=batches, epochs=2, deterministic=deterministic)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for inputs in step.parts():
                step.backward(loop.model(inputs).square().mean(), count=len(inputs))
            optimizer.step()
    assert step.number == 3
    assert not torch.equal(before, model.weight)
os._exit(0)
"""


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A default device whose tensors hold no values, in the place of a GPU."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_a_script_with_another_default_device_saves_and_resumes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run, other = Run(), Run(seed=1)
    run.train(2)
    request.getfixturevalue("elsewhere")
    snapshots = Snapshots(tmp_path)
    assert snapshots.load(**run.parts()) is None
    assert snapshots.save(2, **run.parts())
    snapshots.wait()
    resumed = Snapshots(tmp_path).load(**other.parts())
    assert resumed is not None
    assert resumed.step == 2
    assert_same(run.weights(), other.weights())


@pytest.mark.usefixtures("elsewhere")
def test_orders_and_random_states_are_on_the_cpu() -> None:
    rng_state.check(rng_state.from_plain(rng_state.to_plain(rng_state.get_state())))
    rng_state.draw_from(torch.get_rng_state(), 1)
    for order in (None, weighted([1.0, 2.0, 3.0], 4), by_length([3, 1, 2, 4], 2)):
        sampler = ElasticBatchSampler([0] * 4, 2, order=order)
        assert all(0 <= index < 4 for batch in sampler for index in batch)


def test_a_loop_trains_in_a_script_with_another_default_device(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    assert forks.start("steps.py", env=python_env, folder=tmp_path).wait() == 0
