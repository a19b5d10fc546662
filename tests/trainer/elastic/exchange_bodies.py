"""Bodies of a step as scripts write them, each on its own: which exchange all of their gradients.

exchange_bodies.py FOLDER, under torchrun: writes for each body whether it was refused, and whether
the ranks have equal parameters after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from ddpjob_trainer import Loop


class Net(nn.Module):
    """Two layers, of which the second one is optional."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, values: torch.Tensor, *, short: bool = False) -> torch.Tensor:
        hidden: torch.Tensor = self.first(values)
        return hidden if short else self.second(hidden)


class Checkpointed(Net):
    """Computes its first layer again in the backward pass."""

    def forward(self, values: torch.Tensor, *, short: bool = False) -> torch.Tensor:
        hidden = checkpoint(self.first, values, use_reentrant=False)
        return self.second(hidden)  # type: ignore[no-any-return]


class Script:
    """The model of a step, and the call that exchanges its gradients."""

    def __init__(self, net: nn.Module, model: Any) -> None:
        self.net = net
        self.call = model  # that exchanges gradients

    def values(self) -> torch.Tensor:
        """Other ones on each rank."""
        return torch.full((2, 3), 1.0 + distributed.get_rank())


def usual(script: Script) -> None:
    script.call(script.values()).mean().backward()


def evaluates(script: Script) -> None:
    with torch.no_grad():
        script.net(script.values())
    usual(script)
    with torch.no_grad():
        script.call(script.values())


def looks_at_a_loss(script: Script) -> None:
    usual(script)
    script.call(script.values()).mean()


def gathers_first(script: Script) -> None:
    with script.call.no_sync():
        usual(script)
    script.net(2 * script.values()).mean().backward()
    usual(script)


def one_backward_for_two_forwards(script: Script) -> None:
    (
        script.call(script.values()).mean() + script.call(-2 * script.values()).square().mean()
    ).backward()


def exchanges_twice(script: Script) -> None:
    usual(script)
    script.call(-2 * script.values()).square().mean().backward()


def penalty(script: Script) -> None:
    values = script.values().requires_grad_()
    loss = script.call(values).square().mean()
    (gradient,) = torch.autograd.grad(loss, values, create_graph=True)
    (loss + gradient.square().mean()).backward()


def leaves_a_layer_out(script: Script) -> None:
    script.call(script.values(), short=True).mean().backward()


def thaws(script: Script) -> None:
    script.net.requires_grad_(True)
    usual(script)


def adversarial(script: Script) -> None:
    """Train a GAN: each of two models has losses of its own, and one goes through both."""
    models = script.call
    made = models["g"](script.values())
    for values, sign in ((script.values()[:, :1], 1.0), (made.detach(), -1.0)):
        (sign * models["d"](values).mean()).backward()
    models["d"](made).square().mean().backward()


def bypasses_one_of_two(script: Script) -> None:
    adversarial(script)
    models = script.call
    models["d"](models["g"].module(script.values())).mean().backward()


def bypasses(script: Script) -> None:
    script.net(script.values()).mean().backward()


def bypasses_in_part(script: Script) -> None:
    usual(script)
    assert isinstance(script.net, Net)
    script.net.first(script.values()).mean().backward()


def calls_a_part(script: Script) -> None:
    script.call.module.first(script.values()).mean().backward()


def never_exchanges(script: Script) -> None:
    with script.call.no_sync():
        usual(script)


def backward_twice(script: Script) -> None:
    loss = script.call(script.values()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def two_forwards_then_two_backwards(script: Script) -> None:
    losses = [script.call(factor * script.values()).square().mean() for factor in (1, 2)]
    for loss in losses:
        loss.backward()


def frozen() -> Net:
    net = Net()
    net.first.requires_grad_(False)
    return net


def two_models() -> nn.Module:
    return nn.ModuleDict(
        {"g": Net(), "d": nn.Linear(1, 1), "kept": nn.Linear(1, 1).requires_grad_(False)}
    )


Body = Callable[[Script], None]
RIGHT: list[tuple[Body, Callable[[], nn.Module], dict[str, Any]]] = [
    (usual, Net, {}),
    (usual, Checkpointed, {}),
    (usual, lambda: torch.compile(Net(), backend="eager"), {}),  # type: ignore[list-item, return-value]
    (usual, Net, {"static_graph": True}),
    (usual, Net, {"gradient_as_bucket_view": True}),
    (evaluates, Net, {}),
    (looks_at_a_loss, Net, {}),
    (gathers_first, Net, {}),
    (one_backward_for_two_forwards, Net, {}),
    (exchanges_twice, Net, {}),
    (penalty, Net, {}),
    (leaves_a_layer_out, Net, {"find_unused_parameters": True}),
    (thaws, frozen, {}),
    (adversarial, two_models, {}),
]
WRONG: list[tuple[Body, Callable[[], nn.Module], dict[str, Any], str]] = [
    (bypasses, Net, {}, r"`first.weight` first, .* Call `loop.model\(...\)`"),
    (bypasses_in_part, Net, {}, "2 parameters, `first.weight` first, .* Only the first `backward"),
    (calls_a_part, Net, {}, r"Call `loop.model\(...\)`"),
    (bypasses_one_of_two, two_models, {}, "4 parameters.* Only the first `backward"),
    (never_exchanges, Net, {}, r"Call `loop.model\(...\)`"),
    (backward_twice, Net, {}, "Only the first `backward"),
    (two_forwards_then_two_backwards, Net, {}, "Only the first `backward"),
    (leaves_a_layer_out, Net, {}, "find_unused_parameters=True"),
]


def run(body: Body, make: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Take two steps with this body, and leave the group. Raise what the loop raises."""
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loop = Loop(net, optimizer, steps=2, **options)
    try:
        for step in loop:
            with step:
                optimizer.zero_grad()
                body(Script(net, loop.model))
                optimizer.step()
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def main(folder: Path) -> None:
    """Take a step for each body that needs no options, with models of its own."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    bodies = [(body, make) for body, make, options in RIGHT if not options]
    bodies += [(body, make) for body, make, options, _ in WRONG if not options]
    nets = nn.ModuleDict({str(number): make() for number, (_, make) in enumerate(bodies)})
    optimizer = torch.optim.SGD(nets.parameters(), lr=0.1)
    loop = Loop(nets, optimizer, steps=len(bodies))
    results: list[Any] = []
    for step in loop:
        name, (body, _) = str(step.number), bodies[step.number]
        with step:
            try:
                body(Script(nets[name], loop.model[name]))
                optimizer.step()
            except RuntimeError as error:
                results.append(str(error).partition("rank ")[0])  # the rest names the rank
                optimizer.zero_grad()
                with contextlib.suppress(RuntimeError):  # DDP still waits for the layer left out
                    optimizer.step()
            else:
                results.append([each.tolist() for each in nets[name].state_dict().values()])
                optimizer.zero_grad()
    (folder / f"rank-{step.rank}.json").write_text(json.dumps(results))
    os._exit(0)  # quickly: to take all of torch apart takes a second


if __name__ == "__main__":
    main(Path(sys.argv[1]))
