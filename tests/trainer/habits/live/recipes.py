"""Live scripts with the recipes of papers and tutorials, over one loop."""

from __future__ import annotations

import contextlib

import torch
from torch import distributed, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from trainer.habits.lesson import (
    BATCH,
    EPOCHS,
    STEPS,
    Halving,
    Lion,
    Recomputing,
    mixed_up,
    mlp,
    mse,
    regression,
)
from trainer.habits.tracker import log, watch


def plain_loss(model, x, y):
    return mse(model(x), y)


def train(
    model,
    optimizer,
    finish=None,
    *,
    before=None,
    after=None,
    loss_of=plain_loss,
    within=None,
    work=None,
    between=None,
    **options,
):
    """Train as the plain script does; the functions are the habit."""
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, **options)
    for step in loop:
        if before:
            before(step.number)
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                if work:
                    work(loop.model, step, x, y)
                    continue
                with within(loop.model) if within else contextlib.nullcontext():
                    loss = loss_of(loop.model, x, y)
                    step.backward(loss)
            if finish:
                finish()
            optimizer.step()
            if after:
                after(loss)
        if step.done:
            if between:
                between(loop, step)
            log(step.number + 1)


def sgd(model):
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def clipping_by_value():
    model = mlp()
    train(
        model,
        sgd(model),
        lambda: nn.utils.clip_grad_value_(model.parameters(), 0.05, foreach=True),
    )


def one_cycle():
    model = mlp()
    optimizer = sgd(model)
    train(model, optimizer, scheduler=OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1))


def own_optimizer():
    model = mlp()
    train(model, Lion(model.parameters()))


def normed_weights():
    model = mlp()
    weight_norm(model[0])
    train(model, sgd(model))


def recomputed_layers():
    model = Recomputing()
    train(model, sgd(model))


def group_added_later():
    model = mlp()
    optimizer = SGD(model[0].parameters(), lr=0.05, momentum=0.9)

    def before(number):
        if number == 12 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})

    train(model, optimizer, before=before)


def mixed_samples():
    model = mlp()
    train(model, sgd(model), loss_of=mixed_up)


def spectral_norms():
    model = mlp()
    spectral_norm(model[0])
    train(model, sgd(model))


def fused_adam():
    model = mlp()
    train(model, Adam(model.parameters(), lr=0.01, fused=True))


def foreach_amsgrad():
    model = mlp()
    train(model, Adam(model.parameters(), lr=0.01, foreach=True, amsgrad=True))


def lazy_layers():
    model = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(1))
    train(model, sgd(model))


def no_sync_by_hand():
    model = mlp()
    train(model, sgd(model), within=lambda wrapped: wrapped.no_sync())


def plateau_by_hand():
    model = mlp()
    optimizer = sgd(model)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    train(model, optimizer, after=lambda loss: scheduler.step(loss.item()))


def evaluation_in_the_body():
    model = mlp(nn.Tanh(), Halving())
    x, y = regression().tensors

    def evaluate(_):
        model.eval()
        with torch.no_grad():
            total = mse(model(x), y)
        distributed.all_reduce(total)
        model.train()

    train(model, sgd(model), after=evaluate)


def layer_that_evaluates_from_step_12_on():
    model = mlp(nn.Tanh(), Halving())

    def before(number):
        if number == 12:
            model[2].eval()

    train(model, sgd(model), before=before)
