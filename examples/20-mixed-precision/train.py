"""Handwritten digits in half precision: autocast, a GradScaler for fp16, and small gradients.

--precision bf16 needs no scaler. --compress has DDP send the gradients in that precision, too.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer import Snapshots, step_done

BATCH = 60
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=PRECISIONS, default="fp16")
    parser.add_argument("--compress", action="store_true")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()

    torch.set_num_threads(1)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu"
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, device=device)
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[mixed], labels[mixed]
    count = len(labels) * 4 // 5
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).to(device)  # fmt: skip
    model = DistributedDataParallel(net)
    if args.compress:
        model.register_comm_hook(None, HOOKS[args.precision])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(
        kind, init_scale=2.0**10, growth_interval=50, enabled=args.precision == "fp16"
    )

    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer, scaler=scaler)
    start = loaded.step if loaded else 0
    print(f"rank {rank} of {world} | step {start} | scale {scaler.get_scale():.0f}", flush=True)

    for step in range(start, args.steps):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
        share = order[:BATCH][rank::world]
        optimizer.zero_grad()
        with torch.autocast(kind, PRECISIONS[args.precision]):
            scores = model(images[share])
            total = nn.functional.cross_entropy(scores, labels[share], reduction="sum")
        scaler.scale(total * world / BATCH).backward()
        scaler.step(optimizer)  # not if a gradient is infinite
        scaler.update()
        step_done(step + 1, args.steps)
        is_last = step + 1 == args.steps
        if snapshots.due(step + 1) or is_last:
            snapshots.save(step + 1, model=model, optimizer=optimizer, scaler=scaler, wait=is_last)

    if rank == 0:
        with torch.no_grad():
            accuracy = (net(images[count:]).argmax(1) == labels[count:]).float().mean().item()
        step_done(args.steps, args.steps, accuracy=accuracy, scale=scaler.get_scale())
        print(f"computed in {scores.dtype} | accuracy {accuracy:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # see examples/digits


if __name__ == "__main__":
    main()
