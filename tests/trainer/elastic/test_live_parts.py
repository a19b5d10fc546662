"""The parts of a live loop, each alone: undoing a step, agreeing on a state, plain loops."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_trainer.elastic.state.train_state import TrainState
from ddpjob_trainer.tensors.rng_state import draw_from
from ddpjob_trainer.transfer.agreement import Agreement, StateVersion
from ddpjob_trainer.transfer.broadcast import joined
from support.forked import Forks, Program
from trainer.runs import Counter, Run, assert_same


def test_a_step_that_broke_is_as_if_it_had_not_begun() -> None:
    run, own = Run(), Counter()
    before = run.weights()
    torch.manual_seed(5)
    random.seed(5)
    expected = (torch.rand(3).tolist(), random.random())
    torch.manual_seed(5)
    random.seed(5)
    training = TrainState(run.model, run.optimizer, None, own, None, None)
    training.done = 0
    training.begin()
    run.model(torch.randn(8, 3)).square().sum().backward()  # moves BatchNorm's running mean
    random.random()
    own.value = 1
    assert not torch.equal(before["1.running_mean"], run.weights()["1.running_mean"])
    training.rollback()
    assert_same(before, run.weights())
    assert own.value == 0
    assert (torch.rand(3).tolist(), random.random()) == expected
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert training.done == 0


def test_no_two_ranks_draw_the_same() -> None:
    state = torch.get_rng_state()
    drawn = set()
    for rank in range(4):
        draw_from(state, rank)
        drawn.add(torch.rand(1).item())
    draw_from(state, 3)
    assert torch.rand(1).item() in drawn, "but the same again"
    assert len(drawn) == 4


@pytest.mark.parametrize(
    ("states", "newest", "holders", "deliveries"),
    [
        pytest.param(("7m1", "7m1"), "7m1", [0, 1], [], id="all have it"),
        pytest.param(("7m1", "7m1", ""), "7m1", [0, 1], [(0, 2)], id="one joins"),
        pytest.param(("7m1", "8m1", "7m1"), "8m1", [1], [(1, 0), (1, 2)], id="one is ahead"),
        pytest.param(
            ("8m1", "", "8m1", "", ""),
            "8m1",
            [0, 2],
            [(0, 1), (2, 3), (0, 4)],
            id="givers take turns",
        ),
        pytest.param(
            ("8m1", "8m3"), "8m3", [1], [(1, 0)], id="one did the step in an older membership"
        ),
        pytest.param(("9m1", "8m3"), "9m1", [0], [(0, 1)], id="one was ahead, and cut off"),
        pytest.param(("", ""), "", [], [], id="nobody has any"),
        pytest.param(("0m0", ""), "0m0", [0], [(0, 1)], id="the state before the first step"),
    ],
)
def test_who_gives_the_state_to_whom(
    states: tuple[str, ...], newest: str, holders: list[int], deliveries: list[tuple[int, int]]
) -> None:
    agreement = Agreement(tuple(map(state_of, states)))
    assert (agreement.newest, agreement.holders) == (state_of(newest), holders)
    if newest:
        assert agreement.deliveries() == deliveries


def state_of(text: str) -> StateVersion | None:
    """`7m3`: seven steps done, the last one in membership 3."""
    step, _, n = text.partition("m")
    return StateVersion(int(step), MembershipId(1, 1, int(n))) if text else None


def test_a_state_arrives_as_it_was(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """Over a real gloo group: odd sizes, empty tensors, all that snapshots can hold."""
    script = Path(__file__).with_name("giver_and_taker.py")
    ranks = [forks.start(script, rank, tmp_path, env=python_env) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]


class OnGpu(torch.Tensor):
    """A tensor of the CPU in the role of one on a GPU, which no other tensor may be joined with."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.cat and not all(isinstance(each, OnGpu) for each in args[0]):
            raise RuntimeError("Expected all tensors to be on the same device")
        plain: Any = super()  # torch's stubs lack its types
        found = plain.__torch_function__(function, types, args, kwargs or {})
        return found.as_subclass(torch.Tensor) if function is torch.Tensor.to else found


def test_a_pack_joins_tensors_of_several_devices_in_their_order() -> None:
    """Adam's steps are on the CPU, its moments on a GPU."""
    plain = [torch.full((size,), size, dtype=torch.uint8) for size in range(6)]
    mixed = [each.as_subclass(OnGpu) if each.numel() % 2 else each for each in plain]
    with pytest.raises(RuntimeError, match="same device"):
        torch.cat(mixed)
    pack = joined(mixed, torch.device("cpu"))
    assert type(pack) is torch.Tensor
    assert pack.tolist() == torch.cat(plain).tolist()
    assert type(joined([mixed[3]], torch.device("cpu"))) is torch.Tensor, "alone in its pack"


LOOP = """
import json, os, pathlib, sys, torch
from ddpjob_trainer import Loop
torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("RANK", "0")))
net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loop = Loop(net, optimizer, steps=5)
seen = []
for step in loop:
    with step:
        inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(step.number))
        loss = loop.model(inputs[step.rank :: step.world_size]).square().sum()
        optimizer.zero_grad()
        (loss * step.world_size).backward()
        optimizer.step()
    assert step.done
    seen.append(step.number)
result = [seen, step.world_size, net.weight.sum().item()]
pathlib.Path(f"rank-{step.rank}.json").write_text(json.dumps(result))
os._exit(0)  # torch now and then aborts a process that has finished (docs/failures.md)
"""


def test_without_an_agent_it_is_a_plain_loop(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """On a laptop, and under torchrun: the same result."""
    (tmp_path / "loop.py").write_text(LOOP)

    def results(program: Program) -> list[Any]:
        assert program.wait() == 0
        return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank-*.json"))]

    ((steps, world_size, total),) = results(forks.start("loop.py", env=python_env, folder=tmp_path))
    assert (steps, world_size) == ([0, 1, 2, 3, 4], 1)
    torchrun = ("--standalone", "--nproc-per-node=2", "loop.py")
    both = results(forks.torchrun(*torchrun, env=python_env, folder=tmp_path))
    assert [(rank[0], rank[1]) for rank in both] == [([0, 1, 2, 3, 4], 2)] * 2
    assert both[0][2] == both[1][2] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("pass", "belongs into `with step:`", id="no with"),
        pytest.param(
            "\n        with step: raise RuntimeError('my own mistake')",
            "my own mistake",
            id="error",
        ),
    ],
)
def test_mistakes_of_the_script_end_it(
    forks: Forks, body: str, words: str, tmp_path: Path, python_env: dict[str, str]
) -> None:
    head, _, _ = LOOP.partition("    with step:")
    (tmp_path / "loop.py").write_text(f"{head}    {body}\n")
    with (tmp_path / "errors").open("w+") as errors:
        loop = forks.start("loop.py", env=python_env, folder=tmp_path, errors=errors)
        assert loop.wait() == 1
        errors.seek(0)
        assert words in errors.read()
