"""An ordinary multi-node DDP script for torchrun, in the style of PyTorch's tutorial.

It knows nothing of ddpjob. Every few epochs it saves its progress to `snapshot.pt` in the working
directory, and resumes from that file when it is started again.
"""

import argparse
import os
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SNAPSHOT = Path("snapshot.pt")


class Trainer:
    def __init__(self, model, data, optimizer, save_every):
        self.rank = int(os.environ["RANK"])
        self.data, self.optimizer, self.save_every = data, optimizer, save_every
        self.epochs_run = 0
        if SNAPSHOT.exists():
            snapshot = torch.load(SNAPSHOT, map_location="cpu")
            model.load_state_dict(snapshot["model_state"])
            self.epochs_run = snapshot["epochs_run"]
            print(f"[rank {self.rank}] resuming after epoch {self.epochs_run}", flush=True)
        self.model = DistributedDataParallel(model)

    def train(self, total_epochs):
        for epoch in range(self.epochs_run, total_epochs):
            loss = self.run_epoch(epoch)
            print(f"[rank {self.rank}] epoch {epoch + 1} | loss {loss:.4f}", flush=True)
            if self.rank == 0 and (epoch + 1) % self.save_every == 0:
                self.save(epoch + 1)

    def run_epoch(self, epoch):
        self.data.sampler.set_epoch(epoch)
        for inputs, targets in self.data:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def save(self, epochs_run):
        state = {"model_state": self.model.module.state_dict(), "epochs_run": epochs_run}
        torch.save(state, "snapshot.pt.new")
        Path("snapshot.pt.new").replace(SNAPSHOT)  # a crash leaves the old file or the new one
        print(f"epoch {epochs_run} | saved {SNAPSHOT}", flush=True)


def main(total_epochs, save_every, batch_size):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init_process_group("gloo")
    inputs = torch.randn(4096, 20)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    data = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
    model = torch.nn.Sequential(torch.nn.Linear(20, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    Trainer(model, data, optimizer, save_every).train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="how many epochs to train")
    parser.add_argument("save_every", type=int, help="epochs between two snapshots")
    parser.add_argument("--batch_size", type=int, default=32, help="per process")
    args = parser.parse_args()
    main(args.total_epochs, args.save_every, args.batch_size)
