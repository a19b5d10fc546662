"""DistributedDataParallel over torch_xla, under torchrun: Trainium, TPU."""

import os

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # noqa: F401 - registers the backend
from torch.nn.parallel import DistributedDataParallel

SAVED = "model.pt"


def main():
    dist.init_process_group("xla", init_method="xla://")
    device = xm.xla_device()
    torch.manual_seed(0)
    network, first = torch.nn.Linear(2, 1), 0
    if os.path.exists(SAVED):
        state = torch.load(SAVED, weights_only=True)
        network.load_state_dict(state["model"])
        first = state["epoch"]
    model = DistributedDataParallel(network.to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(first + 1, 51):
        for _ in range(20):
            inputs = torch.randn(16, 2, generator=generator).to(device)
            targets = inputs @ torch.tensor([[3.0], [-2.0]], device=device) + 1
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            xm.mark_step()
        xm.save({"model": network.state_dict(), "epoch": epoch}, SAVED)
        xm.master_print(f"epoch {epoch} | loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
