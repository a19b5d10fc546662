"""The same training as train.py, in processes that stay when workers come and go (level L2)."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from train import BATCH, build_net, load_data

from ddpjob_trainer import ElasticBatchSampler, Loop, step_done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    train, test = load_data(device)
    data = TensorDataset(*train)
    loader = DataLoader(data, batch_sampler=ElasticBatchSampler(data, BATCH, seed=args.seed))
    torch.manual_seed(args.seed)
    net = build_net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    loop = Loop(net, optimizer, loader=loader, steps=args.steps)
    for step in loop:
        with step:  # cut off by a change, it is undone and comes again, with another share
            optimizer.zero_grad()
            for images, labels in step.parts():
                loss = nn.functional.cross_entropy(loop.model(images), labels)
                step.backward(loss)
            optimizer.step()
            step.report(loss=loss.item())

    with torch.no_grad():
        accuracy = (net(test[0]).argmax(1) == test[1]).float().mean().item()
    step_done(args.steps, args.steps, accuracy=accuracy)
    print(f"accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
