"""Live scripts that make, change or exchange gradients in ways of their own."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.func import functional_call
from torch.optim import SGD
from torch.utils.data import DataLoader

from ddpjob_trainer import ElasticBatchSampler, Loop
from support.pages import examples, execute
from trainer.habits.lesson import (
    BATCH,
    EPOCHS,
    Branches,
    gradients_of_a_function,
    mlp,
    mse,
    regression,
)
from trainer.habits.live.recipes import sgd, train
from trainer.habits.tracker import log, watch


def against_all(model, x, gather):
    """Return the loss of a share that compares its features with those of all processes."""
    own, others = model(x), model(x + 0.1)
    everyone, first = gather(others)
    scores = -(own - everyone.T).square()
    return nn.functional.cross_entropy(scores, first + torch.arange(len(x)))


def gathered_features_of_unequal_shares():
    (block,) = examples("docs/live.md", "Your script does X: write Y")
    gather = execute(block)["features_of_all"]
    model = mlp()
    train(model, sgd(model), loss_of=lambda model, x, _: against_all(model, x, gather))


def clipped_by_hooks():
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda gradient: gradient.clamp(-0.05, 0.05))
    train(model, sgd(model))


def optimizers_in_the_backward():
    model = mlp()
    optimizers = {p: SGD([p], lr=0.05) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    data = regression()
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    watch(model)
    loop = Loop(model, [*optimizers.values()], loader=loader, epochs=EPOCHS)
    for step in loop:
        with step:
            for x, y in step.parts():
                step.backward(mse(loop.model(x), y))
        if step.done:
            log(step.number + 1)


def functional_forward():
    model = mlp()
    weights = dict(model.named_parameters())
    train(model, sgd(model), loss_of=lambda _, x, y: mse(functional_call(model, weights, x), y))


def functional_gradients():
    model = mlp()

    def work(_, step, x, y):
        for p, found in gradients_of_a_function(model, x, y):
            p.grad = found

    train(model, sgd(model), work=work)


def functional_gradients_exchanged_by_hand():
    model = mlp()

    def work(_, step, x, y):
        count = torch.tensor(float(len(x)))
        distributed.all_reduce(count)
        for p, found in gradients_of_a_function(model, x, y):
            p.grad = found * len(x) / count
            distributed.all_reduce(p.grad)

    train(model, sgd(model), work=work)


def two_backwards_of_one_forward():
    model = mlp()

    def work(wrapped, step, x, y):
        found = wrapped(x)
        step.backward(mse(found, y))
        step.backward(found.square().mean() / 10)

    train(model, sgd(model), work=work)


def graph_retained_for_a_second_backward():
    model = mlp()

    def work(wrapped, step, x, y):
        found = wrapped(x)
        mse(found, y).backward(retain_graph=True)
        step.backward(found.square().mean() / 10)

    train(model, sgd(model), work=work)


def one_of_two_losses_without_its_weight():
    model = mlp()

    def work(wrapped, step, x, y):
        (wrapped(-x).square().mean() / 10).backward()
        step.backward(mse(wrapped(x), y))

    train(model, sgd(model), work=work)


def two_forwards_and_two_backwards():
    model = mlp()

    def work(wrapped, step, x, y):
        step.backward(mse(wrapped(x), y))
        step.backward(wrapped(-x).square().mean() / 10)

    train(model, sgd(model), work=work)


def two_forwards_before_two_backwards():
    model = mlp()

    def work(wrapped, step, x, y):
        one, two = wrapped(x), wrapped(-x)
        step.backward(mse(one, y))
        step.backward(two.square().mean() / 10)

    train(model, sgd(model), work=work)


def two_forwards_and_one_backward():
    model = mlp()

    def loss_of(wrapped, x, y):
        return mse(wrapped(x), y) + wrapped(-x).square().mean() / 10

    train(model, sgd(model), loss_of=loss_of)


def penalty_of_gradients():
    model = mlp()

    def loss_of(wrapped, x, y):
        x = x.clone().requires_grad_()
        found = wrapped(x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return mse(found, y) + slope.square().mean() / 10

    train(model, sgd(model), loss_of=loss_of)


def branches_that_change():
    model = Branches()
    train(
        model,
        sgd(model),
        before=lambda number: setattr(model, "branch", number % 2),
        find_unused_parameters=True,
    )


def gradients_set_to_zero():
    model = mlp()
    optimizer = sgd(model)
    train(
        model,
        optimizer,
        after=lambda _: optimizer.zero_grad(set_to_none=False),
        gradient_as_bucket_view=True,
    )


def joined_uneven_inputs():
    model = mlp()
    train(model, sgd(model), within=lambda wrapped: wrapped.join())
