"""Live scripts with optimizers, schedulers and steps of many kinds."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from trainer.habits.lesson import (
    BATCH,
    DEVICE,
    EPOCHS,
    STEPS,
    ActorCritic,
    Gan,
    mlp,
    mse,
    regression,
)
from trainer.habits.tracker import log, watch


def plain():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                loss = mse(loop.model(x), y)
                step.backward(loss)
            optimizer.step()
        if step.done:
            log(step.number + 1)


def gan():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = Gan()
    opt_g = Adam(model.g.parameters(), lr=0.01)
    opt_d = Adam(model.d.parameters(), lr=0.01)
    watch(model)
    loop = Loop(model, opt_g, loader=loader, epochs=EPOCHS, find_unused_parameters=True)
    for step in loop:
        with step:
            for x, _ in step.parts():
                noise = x[:, :2].cos()
                fake = loop.model.module.g(noise)
                opt_d.zero_grad()
                real_or_not = loop.model.module.d(x) - loop.model.module.d(fake.detach())
                step.backward(nn.functional.softplus(-real_or_not).mean())
                opt_d.step()
                opt_g.zero_grad()
                step.backward(nn.functional.softplus(-loop.model(noise)).mean())
                opt_g.step()
        if step.done:
            log(step.number + 1)


def actor_critic():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = ActorCritic()
    actor_optimizer = Adam(model.actor.parameters(), lr=0.01)
    critic_optimizer = Adam(model.critic.parameters(), lr=0.02)
    watch(model)
    loop = Loop(model, actor_optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            actor_optimizer.zero_grad()
            critic_optimizer.zero_grad()
            for state, reward in step.parts():
                scores, value = loop.model(state)
                advantage = (reward - value).detach()
                policy = -(scores.log_softmax(1)[:, :1] * advantage).mean()
                step.backward(policy + mse(value, reward))
            actor_optimizer.step()
            critic_optimizer.step()
        if step.done:
            log(step.number + 1)


def accumulation_over_iterations():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y) / 4)
            if (step.number + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
        if step.done:
            log(step.number + 1)


def accumulation_within_a_step():
    data = regression()
    batches = ElasticBatchSampler(data, BATCH, max_samples_per_rank=2)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=DataLoader(data, batch_sampler=batches), epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def scaler_and_clipping():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=4.0, growth_interval=7)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, scaler=scaler)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(scaler.scale(mse(loop.model(x), y)))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        if step.done:
            log(step.number + 1)


def scheduler_by_hand():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: 0.98**step)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
            scheduler.step()
        if step.done:
            log(step.number + 1)


def numpy_learning_rate():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / STEPS)))
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, scheduler=scheduler)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def sharpness_aware():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
                shifts = [0.05 * p.grad / p.grad.norm() for p in model.parameters()]
                with torch.no_grad():
                    torch._foreach_add_([*model.parameters()], shifts)
                optimizer.zero_grad()
                step.backward(mse(loop.model(x), y))
                with torch.no_grad():
                    torch._foreach_sub_([*model.parameters()], shifts)
            optimizer.step()
        if step.done:
            log(step.number + 1)


def lbfgs():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.02, max_iter=3)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for x, y in step.parts():

                def closure(x=x, y=y):
                    optimizer.zero_grad()
                    loss = mse(loop.model(x), y)
                    step.backward(loss)  # noqa: B023 - called at once
                    return loss

                optimizer.step(closure)
        if step.done:
            log(step.number + 1)


def lbfgs_with_the_loss_of_all():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.02, max_iter=3)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for x, y in step.parts():

                def closure(x=x, y=y):
                    optimizer.zero_grad()
                    loss = mse(loop.model(x), y)
                    step.backward(loss)  # noqa: B023 - called at once
                    total = loss.detach().new_tensor([float(loss) * len(x), len(x)])
                    torch.distributed.all_reduce(total)
                    return total[0] / total[1]

                optimizer.step(closure)
        if step.done:
            log(step.number + 1)


def weight_clipping():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
            for p in model.parameters():
                p.data.clamp_(-0.3, 0.3)
        if step.done:
            log(step.number + 1)


# --- the remedies of the documentation ---


def several_optimizers():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    gan = Gan()
    models = nn.ModuleDict({"g": gan.g, "d": gan.d})
    opt_g, opt_d = Adam(gan.g.parameters(), lr=0.01), Adam(gan.d.parameters(), lr=0.01)
    watch(gan)
    loop = Loop(models, [opt_g, opt_d], loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for x, _ in step.parts():
                noise = x[:, :2].cos()
                fake = loop.model["g"](noise)
                opt_d.zero_grad()
                real_or_not = loop.model["d"](x) - loop.model["d"](fake.detach())
                step.backward(nn.functional.softplus(-real_or_not).mean())
                opt_d.step()
                opt_g.zero_grad()
                step.backward(nn.functional.softplus(-gan.d(fake)).mean())
                opt_g.step()
        if step.done:
            log(step.number + 1)


def two_heads_two_optimizers():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = ActorCritic()
    optimizers = [Adam(model.actor.parameters(), 0.01), Adam(model.critic.parameters(), 0.02)]
    watch(model)
    loop = Loop(model, optimizers, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for optimizer in optimizers:
                optimizer.zero_grad()
            for state, reward in step.parts():
                scores, value = loop.model(state)
                advantage = (reward - value).detach()
                policy = -(scores.log_softmax(1)[:, :1] * advantage).mean()
                step.backward(policy + mse(value, reward))
            for optimizer in optimizers:
                optimizer.step()
        if step.done:
            log(step.number + 1)


def scheduler_every_epoch():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    watch(model)
    loop = Loop(
        model, optimizer, loader=loader, epochs=EPOCHS,
        scheduler=scheduler, scheduler_every="epoch",
    )  # fmt: skip
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)
