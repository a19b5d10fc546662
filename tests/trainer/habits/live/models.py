"""Live scripts with models, wrappers and averages of many kinds."""

from __future__ import annotations

import copy

import torch
from accelerate import Accelerator
from lightning_fabric import Fabric
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from trainer.habits.lesson import BATCH, DEVICE, EPOCHS, LanguageModel, mlp, mse, regression
from trainer.habits.tracker import log, watch


def forward_by_the_model_itself():
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
                step.backward(mse(model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def own_average():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model, average)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, extra=average)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
            with torch.no_grad():
                for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(p, 0.1)
        if step.done:
            log(step.number + 1)


def averaged_model():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model, average)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, extra=average)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
            average.update_parameters(model)
        if step.done:
            log(step.number + 1)


def average_outside_of_the_step():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model, average)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, extra=average)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            average.update_parameters(model)
            log(step.number + 1)


def sync_batch_norm():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(mlp(nn.BatchNorm1d(8), nn.Tanh()))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
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


def accelerate_prepares_all():
    accelerator = Accelerator(cpu=True)
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def fabric_sets_up_all():
    fabric = Fabric(accelerator="cpu", devices=1)
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def communication_hook():
    calls = []

    def counted(state, bucket):
        calls.append(1)
        return allreduce_hook(state, bucket)

    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    loop.model.register_comm_hook(lambda: None, counted)
    for step in loop:
        before = len(calls)
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1, loss=float(len(calls) > before))


def shared_parameters():
    model = LanguageModel()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    tokens = torch.randint(1, 11, (58, 5), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    loader = DataLoader(tokens, batch_sampler=ElasticBatchSampler(tokens, BATCH))
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for text in step.parts():
                scores = loop.model(text[:, :-1]).flatten(0, 1)
                step.backward(nn.functional.cross_entropy(scores, text[:, 1:].flatten()))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def layers_unfrozen_in_mid_run():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, find_unused_parameters=True)
    for step in loop:
        model[0].requires_grad_(step.number >= 12)
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def layers_frozen_and_unfrozen_once():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        if step.number == 12:
            model[0].requires_grad_(True)
        if step.number == 26:
            model[2].requires_grad_(False)
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def several_buckets():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp(nn.Tanh(), nn.Linear(8, 400), nn.Tanh(), nn.Linear(400, 400), nn.Linear(400, 8))
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, bucket_cap_mb=0.01)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def dropout():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp(nn.Tanh(), nn.Dropout(0.2))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS, deterministic=4)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)
