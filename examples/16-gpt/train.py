"""A small GPT learns English, a character at a time, in processes that stay (level L2).

The text is Python's own documentation, which every Python has with it.
"""

import argparse
import math
import os
import pydoc_data.topics

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop, step_done

CONTEXT, WIDTH, HEADS, BLOCKS = 64, 64, 4, 2
BATCH = 24


class Block(nn.Module):
    """Attention to what came before, then two layers for each character."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        heads = [
            each.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, dim=2)
        ]
        found = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Predicts each next character."""

    def __init__(self, alphabet):
        super().__init__()
        self.characters, self.places = nn.Embedding(alphabet, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet))

    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.characters(text) + self.places(places)))

    @torch.no_grad()
    def write(self, text, count):
        """`count` characters more, drawn one by one."""
        for _ in range(count):
            scores = self(text[:, -CONTEXT:])[:, -1]
            text = torch.cat([text, torch.multinomial(scores.softmax(1), 1)], dim=1)
        return text[0].tolist()


def loss_of(model, inputs, targets):
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)

    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(text))
    number_of = {character: number for number, character in enumerate(alphabet)}
    numbers = torch.tensor([number_of[character] for character in text], device=device)
    rows = numbers.unfold(0, CONTEXT + 1, CONTEXT)
    held_out, rows = rows[:100], rows[100:]

    data = TensorDataset(rows[:, :-1], rows[:, 1:])
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH))
    torch.manual_seed(0)
    net = Gpt(len(alphabet)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / 20) * (1 + math.cos(math.pi * step / args.steps)) / 2,
    )

    loop = Loop(net, optimizer, loader=loader, steps=args.steps, scheduler=scheduler)
    for step in loop:
        with step:
            optimizer.zero_grad()
            for inputs, targets in step.parts():
                loss = loss_of(loop.model, inputs, targets)
                step.backward(loss)
            optimizer.step()
            step.report(loss=loss.item())

    net.eval()
    with torch.no_grad():
        loss = loss_of(net, held_out[:, :-1], held_out[:, 1:]).item()
    step_done(args.steps, args.steps, held_out=loss)
    written = "".join(alphabet[number] for number in net.write(held_out[:1, :-1], 200))
    print(f"loss {loss:.4f} on text that it has not seen, it writes:\n{written}", flush=True)


if __name__ == "__main__":
    main()
