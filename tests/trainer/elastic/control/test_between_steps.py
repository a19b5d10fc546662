"""Refused between two steps and within a backward; the weights after an evaluation is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from ddpjob_trainer.elastic.control.evaluation import HeldWeights


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def add_up() -> None:
    distributed.all_reduce(torch.ones(1))


def train(
    net: torch.nn.Module,
    between: Callable[[Loop], None],
    prepare: Callable[[torch.optim.Optimizer], None] = lambda _: None,
) -> int:
    """Train for some steps, and call a function after each; return the number of the last step."""
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    prepare(optimizer)
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, 4))
    loop = Loop(net, optimizer, loader=loader, epochs=2)
    number = -1
    for step in loop:
        with step:
            add_up()
            for (part,) in step.parts():
                step.backward(loop.model(part).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            add_up()
        between(loop)
        number = step.number
    return number


def test_a_collective_between_two_steps_is_refused_at_once() -> None:
    with pytest.raises(RuntimeError, match="ran between two steps"):
        train(torch.nn.Linear(2, 1), lambda _: add_up())


def test_a_collective_after_an_evaluation_is_refused_too() -> None:
    def between(loop: Loop) -> None:
        with loop.evaluate():
            add_up()
        add_up()

    with pytest.raises(RuntimeError, match="ran between two steps"):
        train(torch.nn.Linear(2, 1), between)


def test_a_collective_in_an_evaluation_is_not() -> None:
    def between(loop: Loop) -> None:
        with loop.evaluate():
            add_up()

    assert train(torch.nn.Linear(2, 1), between) == 3


def test_an_optimizer_that_steps_within_the_backward_is_refused() -> None:
    net = torch.nn.Linear(2, 1)

    def prepare(optimizer: torch.optim.Optimizer) -> None:
        net.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())

    with pytest.raises(RuntimeError, match="within the backward pass"):
        train(net, lambda _: None, prepare)


def test_memory_that_was_replaced_is_put_back() -> None:
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    held = HeldWeights(model)
    model.weight.data = torch.zeros(2, 3)
    assert held.put_back()
    assert torch.equal(model.weight, before)


def test_content_that_was_replaced_is_seen() -> None:
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    held = HeldWeights(model)
    model.weight.data.copy_(torch.zeros(2, 3))
    assert not held.put_back()
    model.weight.data.copy_(before)
    assert held.put_back(), "the script has put it back"
