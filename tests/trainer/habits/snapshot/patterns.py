"""Scripts of snapshot mode that handle gradients, weights and learning rates themselves."""

from __future__ import annotations

import copy

import torch
from torch import distributed
from torch.func import functional_call
from torch.optim import Adam
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader

from trainer.habits.lesson import STEPS, Best, gradients_of_a_function, mlp, mse, regression
from trainer.habits.snapshot.scripts import sgd, train


def stepping(optimizer, after):
    """Return what a script does at the end of a step, and then `after`."""

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        after(step)

    return finish


def tensor_learning_rate():
    net = mlp()
    optimizer = Adam(net.parameters(), lr=torch.tensor(0.01), foreach=False)
    scheduler = ExponentialLR(optimizer, 0.97)
    train(net, optimizer, stepping(optimizer, lambda _: scheduler.step()), scheduler=scheduler)


def learning_rate_by_hand():
    net = mlp()
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / STEPS)
        optimizer.step()
        optimizer.zero_grad()

    train(net, optimizer, finish)


def gradients_set_to_zero():
    net = mlp()
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    train(net, optimizer, finish, options={"gradient_as_bucket_view": True})


def two_forwards_and_one_backward():
    net = mlp()

    def loss_of(model, batch, part):
        return mse(model(batch[0]), batch[1]) + model(-batch[0]).square().mean() / 10

    train(net, sgd(net), loss_of=loss_of)


def functional_forward():
    net = mlp()
    weights = dict(net.named_parameters())

    def loss_of(model, batch, part):
        return mse(functional_call(net, weights, batch[0]), batch[1])

    train(net, sgd(net), loss_of=loss_of)


def functional_gradients_exchanged_by_hand():
    net = mlp()

    def loss_of(model, batch, part):
        for p, found in gradients_of_a_function(net, *batch):
            p.grad = found * part.weight / distributed.get_world_size()
            distributed.all_reduce(p.grad)

    train(net, sgd(net), loss_of=loss_of, model=net)


def metrics_of_all_ranks():
    net = mlp()
    optimizer = sgd(net)

    def after(step):
        distributed.all_reduce(torch.ones(1))
        distributed.barrier()

    train(net, optimizer, stepping(optimizer, after))


def weights_replaced():
    net = mlp()
    optimizer = sgd(net)

    def after(step):
        if step % 5 == 4:
            for p in net.parameters():
                p.data = p.data * 0.9

    train(net, optimizer, stepping(optimizer, after))


def average_swapped_in_after_a_save():
    net = mlp()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = sgd(net)
    x, y = regression().tensors

    def loss_of(model, batch, part):
        own = [p.detach().clone() for p in net.parameters()]
        for p, mean in zip(net.parameters(), average.parameters(), strict=True):
            p.data.copy_(mean.data)
        mse(net(x), y).item()
        for p, data in zip(net.parameters(), own, strict=True):
            p.data.copy_(data)
        return mse(model(batch[0]), batch[1])

    def after(step):
        for mean, p in zip(average.parameters(), net.parameters(), strict=True):
            mean.data.lerp_(p.data, 0.1)

    finish = stepping(optimizer, after)
    train(net, optimizer, finish, loss_of=loss_of, watched=[average], extra=average)


def best_weights_loaded_again():
    net = mlp()
    optimizer = sgd(net)
    best = Best(net, optimizer)

    def after(step):
        if step == 6:
            best.keep()
        if step == 24:
            best.reload()

    train(net, optimizer, stepping(optimizer, after), extra=best)


def persistent_workers():
    data = regression()
    net = mlp()

    def loader(batches):
        return DataLoader(data, batch_sampler=batches, num_workers=1, persistent_workers=True)

    train(net, sgd(net), data=data, loader=loader)
