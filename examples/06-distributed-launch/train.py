"""A script from the days of `python -m torch.distributed.launch`.

That launcher gives each process its local rank as an argument; with --use_env it does
not, and the process looks into its environment.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", "--local-rank", type=int, default=None)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    told = args.local_rank
    local_rank = int(os.environ["LOCAL_RANK"]) if told is None else told

    torch.set_num_threads(1)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo", init_method="env://")
    rank, world = dist.get_rank(), dist.get_world_size()
    how = "was told" if told is not None else "found"
    print(f"rank {rank} of {world} {how} its local rank {local_rank}", flush=True)

    torch.manual_seed(0)
    inputs = torch.randn(8192, 2)
    dataset = TensorDataset(inputs, inputs @ torch.tensor([[3.0], [-2.0]]) + 1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(2, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} | loss {loss.item():.6f}", flush=True)

    weights = [f"{each:.3f}" for each in [*model.module.weight[0], *model.module.bias]]
    print(f"rank {rank} of {world} learnt {' '.join(weights)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
