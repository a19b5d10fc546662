"""A script for SageMaker: hosts, data and hyperparameters come in SM_* and as arguments."""

import argparse
import csv
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def read(folder):
    with open(os.path.join(folder, "points.csv")) as file:
        rows = torch.tensor([[float(each) for each in row] for row in csv.reader(file)])
    return TensorDataset(rows[:, :2], rows[:, 2:])


def train(args):
    host_rank = args.hosts.index(args.current_host)
    os.environ["WORLD_SIZE"], os.environ["RANK"] = str(len(args.hosts)), str(host_rank)
    backend = "nccl" if args.num_gpus > 0 else "gloo"
    dist.init_process_group(backend, rank=host_rank, world_size=len(args.hosts))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = read(args.data_dir)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    saved, first = os.path.join(args.model_dir, "model.pth"), 0
    network = torch.nn.Linear(2, 1)
    if os.path.exists(saved):
        state = torch.load(saved)
        network.load_state_dict(state["model"])
        first = state["epoch"]
    print(f"host {host_rank} of {len(args.hosts)} begins after epoch {first}", flush=True)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(first + 1, args.epochs + 1):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if host_rank == 0 and epoch % 5 == 0:
            torch.save({"model": network.state_dict(), "epoch": epoch}, saved + ".new")
            os.replace(saved + ".new", saved)
            print(f"epoch {epoch} is saved", flush=True)
    values = [*network.weight[0].tolist(), network.bias.item()]
    print(f"host {host_rank} learnt " + " ".join(f"{each:.2f}" for each in values), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hosts", type=json.loads, default=os.environ["SM_HOSTS"])
    parser.add_argument("--current-host", default=os.environ["SM_CURRENT_HOST"])
    parser.add_argument("--model-dir", default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--data-dir", default=os.environ["SM_CHANNEL_TRAINING"])
    parser.add_argument("--num-gpus", type=int, default=os.environ["SM_NUM_GPUS"])
    train(parser.parse_args())
