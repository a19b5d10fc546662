"""Distributed training without a wrapper: each process averages the gradients by itself.

Every batch of 30 is shared out over the processes: 8, 8, 8 and 6 samples of it to four. A larger
share counts for more, so that the result is that of one process with the whole batch.
"""

import argparse

import torch
import torch.distributed as dist

BATCH = 30


def share_of(batch, rank, world):
    """Return an even share, as chunk() makes it; empty after the end of a short batch."""
    chunks = batch.chunk(world)
    return chunks[rank] if rank < len(chunks) else batch[:0]


def average(tensor, samples, total):
    """The mean over all samples, where each process has that over its own."""
    tensor.mul_(samples / total)
    dist.all_reduce(tensor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    inputs = torch.randn(3010, 4, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True).sin()
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for at, batch in enumerate(order.split(BATCH)):
            mine = share_of(batch, rank, world)
            if epoch == 0 and at == 0:
                print(f"rank {rank} of {world} has {len(mine)} of {len(batch)}", flush=True)
            optimizer.zero_grad()
            errors = (model(inputs[mine]) - targets[mine]) ** 2
            loss = errors.sum() / max(1, len(mine))
            loss.backward()
            for parameter in model.parameters():
                average(parameter.grad, len(mine), len(batch))
            optimizer.step()
        loss = loss.detach()
        average(loss, len(mine), len(batch))
        print(f"rank {rank} of {world} | epoch {epoch + 1} | loss {loss.item():.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
