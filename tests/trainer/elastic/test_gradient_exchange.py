"""A step is refused if one of its gradients was not exchanged, whatever the number of processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import GradBucket

from ddpjob_trainer import Loop
from support.forked import Forks
from trainer.elastic import exchange_bodies
from trainer.elastic.exchange_bodies import RIGHT, WRONG, Body, Net, run, two_models


@pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of the penalty: slow, not wrong
@pytest.mark.parametrize(("body", "make", "options"), RIGHT)
def test_what_exchanges_is_no_mistake(
    body: Body, make: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    run(body, make, options)


@pytest.mark.parametrize(("body", "make", "options", "words"), WRONG)
def test_what_does_not_exchange_is_refused_by_one_process_too(
    body: Body, make: Callable[[], nn.Module], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RuntimeError, match=words):
        run(body, make, options)


def test_two_ranks_agree_or_are_refused(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """On other samples each: a body that is not refused leaves them with equal parameters."""
    program = forks.torchrun(
        "--standalone", "--nproc-per-node=2", exchange_bodies.__file__, tmp_path, env=python_env
    )
    assert program.wait() == 0
    ours, theirs = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert ours == theirs
    refused = [found for found in ours if isinstance(found, str)]
    expected = [words for _, _, options, words in WRONG if not options]
    assert len(ours) - len(refused) == sum(not options for *_, options in RIGHT)
    for found, words in zip(refused, expected, strict=True):
        assert re.search(words, found)


def loop_of(net: nn.Module) -> Loop:
    return Loop(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=1)


@pytest.fixture(autouse=True)
def alone() -> Any:
    """A loop without an agent makes a group of one process."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def test_a_model_that_cannot_be_called_says_how() -> None:
    loop = loop_of(two_models())
    with pytest.raises(RuntimeError, match=r"`with step:` only"):
        loop.model["g"](torch.ones(1, 3))
    with loop_step(loop):
        with pytest.raises(RuntimeError, match=r"call loop.model\['g'\]\(...\) or"):
            loop.model(torch.ones(1, 3))
        with loop.model.alone():
            assert loop.model["g"].wrapped is loop.model.module["g"]  # type: ignore[index]
        with pytest.raises(RuntimeError, match=r"Loop\(torch.compile\(model\), optimizer\)"):
            torch.compile(loop.model["g"], backend="eager")(torch.ones(1, 3))
    net = Net()
    with pytest.raises(ValueError, match="'a' and 'b' share the parameter"):
        loop_of(nn.ModuleDict({"a": net, "b": nn.ModuleDict({"c": net})}))


def test_a_communication_hook_is_made_for_each_group() -> None:
    """A second wrapper is that of the next membership."""
    net = Net()
    calls: list[list[str]] = []  # of each state
    loop = loop_of(net)

    def make_state() -> list[str]:
        calls.append([])
        return calls[-1]

    def hook(state: list[str], bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.append("called")
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer().zero_())
        return future

    hook.__annotations__.update(bucket=GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
    loop.model.register_comm_hook(make_state, hook)
    with pytest.raises(RuntimeError, match="can have one only"):
        loop.model.register_comm_hook(make_state, hook)
    with loop_step(loop):
        for _ in range(2):
            loop.model(torch.ones(1, 3)).sum().backward()
            loop.model.wrap()
        assert [len(each) for each in calls] == [1, 1, 0]
        with pytest.raises(RuntimeError, match=r"call loop.model.register_comm_hook\(make_state"):
            loop.model.wrapped.register_comm_hook(None, hook)  # type: ignore[operator]
        loop.model(torch.ones(1, 3)).sum().backward()
    gradients = [each.grad for each in net.parameters()]
    assert not any(torch.count_nonzero(each) for each in gradients if each is not None)


def test_buckets_are_exchanged_one_at_a_time(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    """With the bits of DDP, and with gloo's own error when a peer is lost."""
    script = Path(__file__).with_name("two_buckets.py")
    ranks = [forks.start(script, rank, tmp_path, env=python_env) for rank in range(2)]
    assert [rank.wait() for rank in ranks] == [0, 0]


def test_layers_that_are_frozen_amid_a_step_are_refused() -> None:
    """Before the first call of the model they are not."""
    net = Net()
    loop = loop_of(net)
    with loop_step(loop):
        net.first.requires_grad_(False)
        loss = loop.model(torch.ones(1, 3)).sum()
        net.first.requires_grad_(True)
        with pytest.raises(RuntimeError, match="layers were frozen or unfrozen between a forward"):
            loop.model(torch.ones(1, 3))
        loss.backward()
        loop.model(torch.ones(1, 3)).sum().backward()
    assert net.first.weight.grad is not None


def loop_step(loop: Loop) -> Any:
    """Begin the first step of the loop."""
    return next(iter(loop))
