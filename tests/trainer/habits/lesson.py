"""The lessons of the scripts, and the models that they share."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

EPOCHS = 8
BATCH = 12  # samples of a step over all processes
SAMPLES = 58  # 5 steps in an epoch, the last one of which is short
STEPS = 40

# Of models and data; `make test-gpu` sets it. Its processes share one GPU.
DEVICE = torch.device(os.environ.get("DDPJOB_TEST_DEVICE", "cpu"))

mse = nn.functional.mse_loss


def regression() -> TensorDataset:
    """Numbers, and a smooth function of them."""
    inputs = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))


def mlp(*layers: nn.Module) -> nn.Module:
    """A small net, with more layers in its middle."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *(layers or (nn.Tanh(),)), nn.Linear(8, 1)).to(DEVICE)


class Recomputing(nn.Module):
    """Computes its inner layers again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: Any) -> Any:
        return checkpoint(self.layers, x, use_reentrant=False)


class Halving(nn.Module):
    """Halves its input, but not in an evaluation."""

    def forward(self, x: Any) -> Any:
        return x / 2 if self.training else x


def gradients_of_a_function(model: Any, x: Any, y: Any) -> Any:
    """Yield the parameters, and their gradients of the mean loss."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = grad(lambda w: mse(functional_call(model, w, (x,)), y))(weights)
    return [(p, found[name]) for name, p in model.named_parameters()]


class Branches(nn.Module):
    """Uses one of two layers at a time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        self.branch = 0
        self.to(DEVICE)

    def forward(self, x: Any) -> Any:
        return self.layers[self.branch](x)


class Best:
    """Keeps a state of training, to go back to it."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts
        self._kept: Any = None

    def keep(self) -> None:
        """Keep the state of now."""
        self._kept = copy.deepcopy([each.state_dict() for each in self._parts])

    def reload(self) -> None:
        """Go back."""
        for part, state in zip(self._parts, self._kept, strict=True):
            part.load_state_dict(copy.deepcopy(state))

    def state_dict(self) -> Any:
        """Return what is kept."""
        return {"kept": self._kept}

    def load_state_dict(self, state: Any) -> None:
        """Keep what another process has kept."""
        self._kept = copy.deepcopy(state["kept"])


def mixed_up(model: Any, x: Any, y: Any) -> Any:
    """Return the loss of samples that are mixed by the random numbers of this process."""
    share, others = torch.rand(()).item(), torch.randperm(len(x))
    found = model(share * x + (1 - share) * x[others])
    return share * mse(found, y) + (1 - share) * mse(found, y[others])


class Gan(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))
        self.d = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.to(DEVICE)

    def forward(self, noise: Any) -> Any:
        return self.d(self.g(noise))


class ActorCritic(nn.Module):
    """Two heads, with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(4, 3), nn.Linear(4, 1)
        self.to(DEVICE)

    def forward(self, state: Any) -> Any:
        return self.actor(state), self.critic(state)


class LanguageModel(nn.Module):
    """Predicts the next token; input and output share their weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.to(DEVICE)

    def forward(self, tokens: Any) -> Any:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


PAD = 0


class Sentences(torch.utils.data.Dataset[Any]):
    """Sequences of tokens of unequal length."""

    def __init__(self) -> None:
        chance = torch.Generator().manual_seed(2)
        self.lengths = torch.randint(2, 10, (SAMPLES,), generator=chance).tolist()
        texts = [torch.randint(1, 11, (n,), generator=chance) for n in self.lengths]
        self.texts = [text.to(DEVICE) for text in texts]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.texts[index]


def pad(texts: Any) -> Any:
    """Collate sequences of unequal length."""
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=PAD)


class Lion(torch.optim.Optimizer):
    """An optimizer as scripts bring it along: its step has the size of the sign of a mean."""

    def __init__(self, params: Any, lr: float = 0.005) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step against the smoothed sign."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                p.sub_(torch.tanh(100 * torch.lerp(p.grad, mean, 0.9)), alpha=group["lr"])
                mean.lerp_(p.grad, 0.01)
