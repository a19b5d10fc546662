"""Live scripts with weights, learning rates and variables that they change themselves."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import distributed
from torch.optim import Adam
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, IterableDataset

from ddpjob_trainer import ElasticBatchSampler, Loop, Stream
from trainer.habits.lesson import BATCH, EPOCHS, STEPS, Best, mlp, mse, regression
from trainer.habits.live.recipes import sgd, train
from trainer.habits.tracker import log, watch


def is_fifth(step):
    return (step.number + 1) % 5 == 0


def tensor_learning_rate():
    model = mlp()
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    train(model, optimizer, scheduler=ExponentialLR(optimizer, 0.97))


def capturable_adam():
    model = mlp()
    train(model, Adam(model.parameters(), lr=0.01, capturable=True))


def learning_rate_by_hand():
    model = mlp()
    optimizer = sgd(model)

    def before(number):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - number / STEPS)

    train(model, optimizer, before=before)


def learning_rate_finder():
    model = mlp()
    optimizer = sgd(model)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    x, y = regression().tensors
    losses = []
    for exponent in range(-4, 1):
        optimizer.param_groups[0]["lr"] = 2.0**exponent
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    optimizer.param_groups[0]["lr"] = 0.1 * 2.0 ** (losses.index(min(losses)) - 4)
    train(model, optimizer)


def metrics_of_all_ranks():
    model = mlp()

    def after(loss):
        distributed.all_reduce(loss.detach())
        distributed.barrier()

    train(model, sgd(model), after=after)


def metrics_between_steps():
    model = mlp()
    train(model, sgd(model), between=lambda *_: distributed.all_reduce(torch.ones(1)))


def pictures_of_rank_0():
    model = mlp()
    x, _ = regression().tensors

    def between(loop, step):
        if step.rank == 0:
            with torch.no_grad():
                model(x + torch.rand(len(x), 1)).mean().item()

    train(model, sgd(model), between=between)


def weights_replaced_in_the_body():
    model = mlp()
    number = 0

    def before(now):
        nonlocal number
        number = now

    def after(loss):
        distributed.all_reduce(loss.detach())
        if number % 5 == 4:
            for p in model.parameters():
                p.data = p.data * 0.9

    train(model, sgd(model), before=before, after=after)


def weights_replaced_between_steps():
    model = mlp()

    def between(loop, step):
        if is_fifth(step):
            for p in model.parameters():
                p.data = p.data * 0.9

    train(model, sgd(model), between=between)


def average_swapped_in(model, average, evaluate):
    """Evaluate an average in the model itself, as helpers for averages do."""
    own = [p.data for p in model.parameters()]
    for p, mean in zip(model.parameters(), average.parameters(), strict=True):
        p.data = mean.data
    evaluate()
    for p, data in zip(model.parameters(), own, strict=True):
        p.data = data


def move(average, model):
    with torch.no_grad():
        for mean, p in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(p, 0.1)


def average_swapped_in_between_steps():
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    x, y = regression().tensors

    def between(loop, step):
        move(average, model)
        if is_fifth(step):
            average_swapped_in(model, average, lambda: mse(model(x), y).item())

    train(model, sgd(model), between=between, extra=average)


def average_swapped_in_for_an_evaluation():
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    x, y = regression().tensors

    def between(loop, step):
        move(average, model)
        with loop.evaluate():
            average_swapped_in(
                model, average, lambda: distributed.all_reduce(mse(loop.model(x), y))
            )

    train(model, sgd(model), between=between, extra=average)


def average_swapped_in_in_the_body():
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    x, y = regression().tensors

    def after(_):
        move(average, model)
        with torch.no_grad():
            average_swapped_in(model, average, lambda: distributed.all_reduce(mse(model(x), y)))

    train(model, sgd(model), after=after, extra=average)


def best_weights_loaded_again():
    model = mlp()
    optimizer = sgd(model)
    best = Best(model, optimizer)

    def between(loop, step):
        if step.number == 6:
            best.keep()
        if step.number == 24:
            best.reload()

    train(model, optimizer, between=between, extra=best)


class Numbers(IterableDataset[Any]):
    """The samples one after the other."""

    def __iter__(self):
        return iter(list(zip(*regression().tensors, strict=True)))


def iterable_dataset():
    model = mlp()
    Loop(model, sgd(model), loader=DataLoader(Numbers(), BATCH), epochs=EPOCHS)


def stream():
    loader = DataLoader(Numbers(), BATCH, collate_fn=list)
    model = mlp()
    optimizer = sgd(model)
    watch(model)
    loop = Loop(model, optimizer, loader=Stream(loader), epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def persistent_workers():
    data = regression()
    loader = DataLoader(
        data,
        batch_sampler=ElasticBatchSampler(data, BATCH),
        num_workers=1,
        persistent_workers=True,
    )
    model = mlp()
    optimizer = sgd(model)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)
