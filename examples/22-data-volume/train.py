"""Trains on files of a volume that every worker mounts, without a copy.

The files are mapped into memory: workers on one node share what the node has read.
"""

import glob
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler

DATA = os.environ.get("DATA", "data")
EPOCHS = 20


class Piece(Dataset):
    """One pair of files."""

    def __init__(self, path):
        self.images = np.load(path, mmap_mode="r")
        self.labels = np.load(path.replace("images", "labels"), mmap_mode="r")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.tensor(self.images[index], dtype=torch.float32) / 255
        return image, torch.tensor(self.labels[index], dtype=torch.float32)


def main():
    torch.set_num_threads(1)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    paths = sorted(glob.glob(f"{DATA}/images-*.npy"))
    if not paths:
        raise SystemExit(f"there is no images-*.npy in {DATA}: run make_data.py {DATA} once")
    data = ConcatDataset([Piece(path) for path in paths])
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=50, sampler=sampler, num_workers=1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(256, 1)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        read, light = 0, 0.0
        for batch in loader:
            images, labels = (each.to(device) for each in batch)
            optimizer.zero_grad()
            scores = model(images - 0.5)[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
            loss.backward()
            optimizer.step()
            read, light = read + len(images), light + images.double().mean((1, 2)).sum().item()
        total = torch.tensor([read, light], dtype=torch.float64, device=device)
        dist.all_reduce(total)
        if rank == 0:
            print(
                f"{world} processes | epoch {epoch + 1} | read {total[0]:.0f} images of "
                f"{len(paths)} files | light {total[1]:.3f} | loss {loss.item():.4f}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
