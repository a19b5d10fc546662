"""The tasks of the equivalence benchmark: handwritten digits, and a small GPT on English text.

Nothing in it makes much of little: no ReLU and no maximum, which switch where rounding decides, and
SGD with momentum, because Adam divides by the gradient's own size.
"""

from __future__ import annotations

import pydoc_data.topics
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

Pair = tuple[torch.Tensor, torch.Tensor]  # inputs, targets

CHARACTERS = 100_000  # of the language reference that comes with Python
CONTEXT = 64
WIDTH, HEADS, BLOCKS = 64, 4, 3


class Task(NamedTuple):
    """A model, its data, and how it learns."""

    model: nn.Module
    data: TensorDataset  # of numbers, inputs and targets
    held_out: Pair
    optimizer: torch.optim.Optimizer
    batch: int  # samples per step, over all processes

    def judge(self) -> dict[str, float]:
        """Loss and accuracy on what it was not trained on; every process finds the same."""
        inputs, targets = self.held_out
        self.model.eval()
        with torch.no_grad():
            output = self.model(inputs)
        right = (output.argmax(-1) == targets).double().mean().item()
        return {"loss": losses(output, targets).mean().item(), "accuracy": right}


def losses(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One for each sample; that of a text is the mean over its characters.

    With 64 bits: the last bit of a loss with 32 would be the largest difference between two runs.
    """
    scores, right = output.double().flatten(0, -2), targets.flatten()
    each = nn.functional.cross_entropy(scores, right, reduction="none")
    return each.view(len(targets), -1).mean(1)


def make(name: str, seed: int, dropout: float) -> Task:
    """`digits` or `gpt`, for one thread. The seed is that of the parameters."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return {"digits": _digits, "gpt": _gpt}[name](dropout)


def _digits(dropout: float) -> Task:
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    train, held_out = _split(images, torch.tensor(found.target))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 32, 3, padding=1), nn.GELU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.GELU(), nn.Dropout(dropout),
        nn.Linear(64, 10),
    )  # fmt: skip
    return Task(model, _numbered(*train), held_out, _sgd(model, 0.005), batch=64)


def _gpt(dropout: float) -> Task:
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))[:CHARACTERS]
    alphabet = {character: number for number, character in enumerate(sorted({*text}))}
    numbers = torch.tensor([alphabet[character] for character in text])
    rows = numbers.unfold(0, CONTEXT + 1, CONTEXT)
    train, held_out = _split(rows[:, :-1], rows[:, 1:])
    model = Gpt(len(alphabet), dropout)
    return Task(model, _numbered(*train), held_out, _sgd(model, 0.05), batch=32)


def _numbered(inputs: torch.Tensor, targets: torch.Tensor) -> TensorDataset:
    return TensorDataset(torch.arange(len(inputs)), inputs, targets)


def _sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def _split(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[Pair, Pair]:
    """To train on, and a fifth that is held out; the same whatever the seed."""
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    out, train = order[: len(order) // 5], order[len(order) // 5 :]
    return (inputs[train], targets[train]), (inputs[out], targets[out])


class Gpt(nn.Module):
    """Predicts each next character of a text."""

    def __init__(self, alphabet: int, dropout: float) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the scores of the characters that may follow each numbered character."""
        places = torch.arange(text.shape[1], device=text.device)
        found: torch.Tensor = self.head(self.blocks(self.characters(text) + self.places(places)))
        return found


class Block(nn.Module):
    """Attention to what came before, then two layers for each character."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.three = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.each = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout),
        )  # fmt: skip
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return a tensor of that shape."""
        three = self.three(self.norm(inputs)).chunk(3, -1)
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in three)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        found: torch.Tensor = inputs + self.each(inputs)
        return found
