"""Scripts of snapshot mode: all processes start again after each change.

`train` is what such scripts have in common; each adds its habit.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from accelerate import Accelerator
from lightning_fabric import Fabric
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Snapshots
from trainer.habits.lesson import (
    BATCH,
    EPOCHS,
    STEPS,
    ActorCritic,
    Gan,
    LanguageModel,
    mlp,
    mse,
    regression,
)
from trainer.habits.tracker import log, watch


def train(
    net,
    optimizer,
    finish=None,
    *,
    loss_of=None,
    data=None,
    collate=None,
    watched=(),
    extra=None,
    parts_of=None,
    options=None,
    hook=None,
    model=None,
    loader=None,
    **saved,
):
    if not distributed.is_initialized():
        distributed.init_process_group("gloo")
    watch(net, *watched)
    model = model or DistributedDataParallel(net, **(options or {}))
    if hook:
        model.register_comm_hook(None, hook)
    data = data or regression()
    batches = ElasticBatchSampler(data, BATCH, max_samples_per_rank=parts_of)
    loader = (
        DataLoader(data, batch_sampler=batches, collate_fn=collate)
        if loader is None
        else loader(batches)
    )
    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer, data=batches, **saved)
    step = loaded.step if loaded else 0
    if loaded and extra is not None:
        extra.load_state_dict(loaded.extra)
    while batches.epoch < EPOCHS:
        for batch in loader:
            with batches.part(model) as part:
                loss = loss_of(model, batch, part) if loss_of else mse(model(batch[0]), batch[1])
                if loss is not None:
                    (loss * part.weight).backward()
            if part.is_last:
                if finish is None:
                    optimizer.step()
                    optimizer.zero_grad()
                else:
                    finish(model, step)
                step += 1
                log(step)
                is_last = batches.epoch == EPOCHS
                if snapshots.due(step) or is_last:
                    snapshots.save(
                        step,
                        model=model,
                        optimizer=optimizer,
                        data=batches,
                        wait=is_last,
                        extra=None if extra is None else extra.state_dict(),
                        **saved,
                    )
    distributed.barrier()


def sgd(net):
    return SGD(net.parameters(), lr=0.05, momentum=0.9)


def plain():
    net = mlp()
    train(net, sgd(net))


def gan():
    net = Gan()
    opt_g, opt_d = Adam(net.g.parameters(), lr=0.01), Adam(net.d.parameters(), lr=0.01)

    def play(model, batch, part):
        noise = batch[0][:, :2].cos()
        real_or_not = net.d(batch[0]) - net.d(net.g(noise).detach())
        opt_d.zero_grad()
        (nn.functional.softplus(-real_or_not).mean() * part.weight).backward()
        average(net.d)
        opt_d.step()
        opt_g.zero_grad()
        return nn.functional.softplus(-model(noise)).mean()

    def average(net):
        for p in net.parameters():
            distributed.all_reduce(p.grad)
            p.grad /= distributed.get_world_size()

    train(
        net,
        [opt_g, opt_d],
        lambda *_: opt_g.step(),
        loss_of=play,
        options={"find_unused_parameters": True},
    )


def actor_critic():
    net = ActorCritic()
    actor, critic = Adam(net.actor.parameters(), lr=0.01), Adam(net.critic.parameters(), lr=0.02)

    def act(model, batch, part):
        scores, value = model(batch[0])
        advantage = (batch[1] - value).detach()
        return -(scores.log_softmax(1)[:, :1] * advantage).mean() + mse(value, batch[1])

    def finish(model, step):
        for optimizer in (actor, critic):
            optimizer.step()
            optimizer.zero_grad()

    train(net, [actor, critic], finish, loss_of=act)


def accumulation_within_a_step():
    net = mlp()
    train(net, sgd(net), parts_of=2)


def scaler_and_clipping():
    net = mlp()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=7)

    def finish(model, step):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    train(
        net,
        optimizer,
        finish,
        scaler=scaler,
        loss_of=lambda model, batch, _: scaler.scale(mse(model(batch[0]), batch[1])),
    )


def scheduler_per_epoch():
    net = mlp()
    optimizer = sgd(net)
    scheduler = StepLR(optimizer, 1, 0.7)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 5 == 0:
            scheduler.step()

    train(net, optimizer, finish, scheduler=scheduler)


def scheduler_on_plateau():
    net, data = mlp(), regression()
    optimizer = sgd(net)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 5 == 0:
            with torch.no_grad():
                scheduler.step(mse(net(data.tensors[0]), data.tensors[1]))

    train(net, optimizer, finish, scheduler=scheduler)


def numpy_learning_rate():
    net = mlp()
    optimizer = sgd(net)
    scheduler = LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / STEPS)))

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    train(net, optimizer, finish, scheduler=scheduler)


def weight_clipping():
    net = mlp()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=0.01)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        for p in net.parameters():
            p.data.clamp_(-0.3, 0.3)

    train(net, optimizer, finish)


def own_average():
    net = mlp()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(p, 0.1)

    train(net, optimizer, finish, watched=[average], extra=average)


def averaged_model():
    net = mlp()
    average = AveragedModel(net)
    optimizer = sgd(net)

    def finish(model, step):
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(net)

    train(net, optimizer, finish, watched=[average], extra=average)


def accelerate_prepares_the_model():
    accelerator = Accelerator(cpu=True)
    net = mlp()
    optimizer = sgd(net)
    model, optimizer = accelerator.prepare(net, optimizer)
    train(net, optimizer, model=model)


def fabric_sets_up_the_model():
    distributed.init_process_group("gloo")
    fabric = Fabric(accelerator="cpu", devices=1)
    net = mlp()
    model, optimizer = fabric.setup(net, sgd(net))
    train(net, optimizer, model=model)


def communication_hook():
    net = mlp()
    train(net, sgd(net), hook=allreduce_hook)


def shared_parameters():
    net = LanguageModel()
    tokens = torch.randint(1, 11, (58, 5), generator=torch.Generator().manual_seed(2))

    def loss_of(model, text, part):
        scores = model(text[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(scores, text[:, 1:].flatten())

    train(net, sgd(net), data=list(tokens), loss_of=loss_of)


def own_collate_in_workers():
    data = regression()
    net = mlp()

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack(x), torch.stack(y)

    train(
        net,
        sgd(net),
        data=data,
        loader=lambda batches: DataLoader(
            data, batch_sampler=batches, collate_fn=collate, num_workers=1
        ),
    )
