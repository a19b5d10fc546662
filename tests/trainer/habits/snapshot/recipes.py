"""Scripts of snapshot mode with the recipes of papers and tutorials."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from trainer.habits.lesson import STEPS, Lion, Recomputing, mixed_up, mlp, mse
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


def mixed_samples():
    net = mlp()
    train(net, sgd(net), loss_of=lambda model, batch, part: mixed_up(model, *batch))


def spectral_norms():
    net = mlp()
    spectral_norm(net[0])
    train(net, sgd(net))


def fused_adam():
    net = mlp()
    train(net, Adam(net.parameters(), lr=0.01, fused=True))


def recomputed_layers():
    net = Recomputing()
    train(net, sgd(net))


def plateau_on_a_local_metric():
    net = mlp()
    optimizer = sgd(net)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    losses = []

    def loss_of(model, batch, part):
        loss = mse(model(batch[0]), batch[1])
        losses.append(loss.item())
        return loss

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(losses[-1])

    train(net, optimizer, finish, loss_of=loss_of, scheduler=scheduler)


def no_sync_by_hand():
    net = mlp()

    def loss_of(model, batch, part):
        with model.no_sync():
            (mse(model(batch[0]), batch[1]) * part.weight).backward()

    train(net, sgd(net), loss_of=loss_of)


def layers_unfrozen_after_the_wrapping():
    net = mlp()
    net[0].requires_grad_(False)
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        net[0].requires_grad_()

    train(net, optimizer, finish)


def group_added_later():
    net = mlp()
    optimizer = SGD(net[0].parameters(), lr=0.05, momentum=0.9)

    def finish(model, step):
        optimizer.step()
        net.zero_grad()
        if step == 2 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.01})

    train(net, optimizer, finish)


def optimizer_in_shards():
    distributed.init_process_group("gloo")
    net = mlp()
    train(net, ZeroRedundancyOptimizer(net.parameters(), SGD, lr=0.05, momentum=0.9))
