"""Live scripts with the recipes of papers and tutorials, over one loop."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from trainer.habits.lesson import BATCH, EPOCHS, STEPS, Lion, mlp, mse, regression
from trainer.habits.tracker import log, watch


def train(model, optimizer, finish=None, *, before=None, **options):
    """Train as the plain script does; `before` and `finish` are the habit."""
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
                step.backward(mse(loop.model(x), y))
            if finish:
                finish()
            optimizer.step()
        if step.done:
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


class Recomputing(nn.Module):
    """Computes its inner layers again in the backward."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


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
