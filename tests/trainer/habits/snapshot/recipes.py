"""Scripts of snapshot mode with the recipes of papers and tutorials."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.lr_scheduler import OneCycleLR

from trainer.habits.lesson import STEPS, Lion, mlp
from trainer.habits.snapshot.scripts import sgd, train


def clipping_by_value():
    net = mlp()
    optimizer = sgd(net)

    def finish(model, step):
        nn.utils.clip_grad_value_(net.parameters(), 0.05, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    train(net, optimizer, finish)


def one_cycle():
    net = mlp()
    optimizer = sgd(net)
    scheduler = OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    train(net, optimizer, finish, scheduler=scheduler)


def own_optimizer():
    net = mlp()
    train(net, Lion(net.parameters()))


def normed_weights():
    net = mlp()
    weight_norm(net[0])
    train(net, sgd(net))


def frozen_backbone():
    net = mlp()
    net[0].requires_grad_(False)
    train(net, sgd(net[2]))


def forgotten_wrapper():
    net = mlp()
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        distributed.all_reduce(torch.ones(1))  # the loss, for a log

    train(net, optimizer, finish, model=net)
