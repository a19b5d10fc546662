"""Live scripts with losses, samplers and evaluations of many kinds."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

from ddpjob_trainer import ElasticBatchSampler, Loop
from trainer.habits.lesson import (
    BATCH,
    EPOCHS,
    PAD,
    STEPS,
    LanguageModel,
    Sentences,
    mlp,
    mse,
    pad,
    regression,
)
from trainer.habits.tracker import log, watch


def weighted_sampler():
    data = regression()
    weights = torch.arange(1.0, len(data) + 1)
    sampler = WeightedRandomSampler(weights, len(data))
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=DataLoader(data, BATCH, sampler=sampler), epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def distributed_sampler():
    data = regression()
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=DataLoader(data, BATCH, sampler=sampler), epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            log(step.number + 1)


def data_by_step_number():
    data = regression()
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, steps=STEPS)
    for step in loop:
        chance = torch.Generator().manual_seed(step.number)
        mine = torch.randperm(len(data), generator=chance)[:BATCH][step.rank :: step.world_size]
        x, y = data[mine]
        with step:
            optimizer.zero_grad()
            loss = (loop.model(x) - y).square().sum() * step.world_size / BATCH
            loss.backward()
            optimizer.step()
        if step.done:
            log(step.number + 1)


def loss_without_its_weight():
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
                mse(loop.model(x), y).backward()
            optimizer.step()
        if step.done:
            log(step.number + 1)


def early_stopping():
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
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            with torch.no_grad():
                held_out = mse(model(data.tensors[0]), data.tensors[1]).item()
            log(step.number + 1, held_out)
            if held_out < 0.25:
                break


def evaluation_on_one_rank():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp(nn.Tanh(), nn.Dropout(0.0))
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
            if step.rank == 0 and (step.number + 1) % 5 == 0:
                model.eval()
                with torch.no_grad():
                    mse(model(data.tensors[0]), data.tensors[1]).item()
                model.train()


def evaluation_on_all_ranks():
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
                step.backward(mse(loop.model(x), y))
            optimizer.step()
            if (step.number + 1) % 5 == 0:
                with torch.no_grad():
                    x, y = data[step.rank :: step.world_size]
                    total = (model(x) - y).square().sum()
                distributed.all_reduce(total)
        if step.done:
            log(step.number + 1)


def own_collate_in_workers():
    data = regression()

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return {"x": torch.stack(x), "y": torch.stack(y)}

    batches = ElasticBatchSampler(data, BATCH)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collate, num_workers=1)
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for batch in step.parts():
                step.backward(mse(loop.model(batch["x"]), batch["y"]))
            optimizer.step()
        if step.done:
            log(step.number + 1)


# --- the remedies of the documentation ---


def mean_over_counted_tokens():
    data = Sentences()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH), collate_fn=pad)
    model = LanguageModel()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for text in step.parts():
                scores, targets = loop.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()
                loss = nn.functional.cross_entropy(scores, targets, ignore_index=PAD)
                step.backward(loss, count=(targets != PAD).sum())
            optimizer.step()
        if step.done:
            log(step.number + 1)


def order_by_weight():
    data = regression()
    weights = torch.arange(1.0, len(data) + 1)

    def order(epoch):
        chance = torch.Generator().manual_seed(epoch)
        return torch.multinomial(weights, len(data), replacement=True, generator=chance).tolist()

    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH, order=order))
    model = mlp()
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


def order_by_length():
    data = Sentences()

    def order(epoch):
        chance = torch.Generator().manual_seed(epoch)
        shuffled = torch.randperm(len(data), generator=chance).tolist()
        return sorted(shuffled, key=lambda index: data.lengths[index] // 3)

    batches = ElasticBatchSampler(data, BATCH, order=order)
    loader = DataLoader(data, batch_sampler=batches, collate_fn=pad)
    model = LanguageModel()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    watch(model)
    loop = Loop(model, optimizer, loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for text in step.parts():
                scores, targets = loop.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()
                loss = nn.functional.cross_entropy(scores, targets, ignore_index=PAD)
                step.backward(loss, count=(targets != PAD).sum())
            optimizer.step()
        if step.done:
            log(step.number + 1)


def early_stopping_by_stop():
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
                step.backward(mse(loop.model(x), y))
            optimizer.step()
        if step.done:
            with loop.evaluate():
                held_out = mse(model(data.tensors[0]), data.tensors[1]).item()
            log(step.number + 1, held_out)
            if held_out < 0.25:
                loop.stop()


def evaluation_by_evaluate():
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    model = mlp(nn.Tanh(), nn.Dropout(0.0))
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
            if (step.number + 1) % 5 == 0:
                with loop.evaluate():
                    x, y = data[step.rank :: step.world_size]
                    total = (loop.model(x) - y).square().sum()
                    distributed.all_reduce(total)
