"""The same training as train.py, in processes that stay when workers come and go (level L2)."""

import argparse
import os

import torch
from torch import nn
from train import BATCH, batch_of, build_net, load_data

from ddpjob_trainer import Loop, step_done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    (images, labels), test = load_data(device)
    torch.manual_seed(args.seed)
    net = build_net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    loop = Loop(net, optimizer, steps=args.steps)
    for step in loop:
        with step:  # cut off by a change, it is undone and comes again, with another share
            share = batch_of(step.number, len(labels), args.seed)[step.rank :: step.world_size]
            output = loop.model(images[share])
            loss = nn.functional.cross_entropy(output, labels[share], reduction="sum") / BATCH
            optimizer.zero_grad()
            (loss * step.world_size).backward()  # DDP averages; the loss is of the whole batch
            optimizer.step()
            step.report(loss=loss.item() * step.world_size)

    with torch.no_grad():
        accuracy = (net(test[0]).argmax(1) == test[1]).float().mean().item()
    step_done(args.steps, args.steps, accuracy=accuracy)
    print(f"accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
