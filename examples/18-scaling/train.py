"""Train a small net on all processes of the job; report the speed and the batch.

The batch of all processes together stays what it is; with --per-process it grows with them, and
the learning rate with it.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ddpjob_trainer import ElasticBatchSampler, Loop, scale_lr, step_done

UNMEASURED = 20  # steps, until all is warm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--per-process", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(8192, 3, 16, 16)
    data = TensorDataset(images, images.flatten(1).sum(1, keepdim=True).sign())
    batches = ElasticBatchSampler(data, args.batch, per_process=args.per_process)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if args.per_process:
        scale_lr(optimizer, batches, lambda size: size / args.batch)

    loop = Loop(net, optimizer, loader=DataLoader(data, batch_sampler=batches), steps=args.steps)
    samples = seconds = processes = size = 0
    for step in loop:
        began = time.perf_counter()
        with step:
            optimizer.zero_grad()
            for x, y in step.parts():
                step.backward(nn.functional.mse_loss(loop.model(x), y))
            optimizer.step()
        processes, size = step.world_size, batches.batch_size
        if step.done and step.number >= UNMEASURED:
            samples, seconds = samples + size, seconds + time.perf_counter() - began
    speed = samples / seconds
    step_done(args.steps, args.steps, processes=processes, batch=size, samples_per_second=speed)
    print(f"{processes} processes | batch {size} | {speed:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
