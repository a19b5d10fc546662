"""Horovod's own elements: init, a distributed optimizer, parameters broadcast from rank 0."""

import os

import horovod.torch as hvd
import torch

SAVED = "model.pt"
WANTED = torch.tensor([[3.0], [-2.0]])


def main():
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, first = torch.nn.Linear(2, 1), 0
    if hvd.rank() == 0 and os.path.exists(SAVED):
        state = torch.load(SAVED, weights_only=True)
        model.load_state_dict(state["model"])
        first = state["epoch"]
    model.to(device)
    first = hvd.broadcast_object(first, root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    generator = torch.Generator().manual_seed(hvd.rank())
    for epoch in range(first + 1, 51):
        for _ in range(20):
            inputs = torch.randn(16, 2, generator=generator)
            targets = inputs @ WANTED + 1
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            torch.save({"model": model.state_dict(), "epoch": epoch}, SAVED + ".new")
            os.replace(SAVED + ".new", SAVED)
            print(f"{hvd.size()} processes | epoch {epoch} | loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
