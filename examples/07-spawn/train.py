"""A script that starts its own processes, one for each GPU of its machine (mp.spawn)."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

EPOCHS = 40
SAVE_EVERY = 5
CHECKPOINT = "checkpoint.pt"


def main():
    nodes, node = int(os.environ.get("NNODES", "1")), int(os.environ.get("NODE_RANK", "0"))
    processes = torch.cuda.device_count() or int(os.environ.get("NPROC_PER_NODE", "2"))
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "12355")
    mp.spawn(train, args=(nodes, node, processes), nprocs=processes)


def train(local_rank, nodes, node, processes):
    rank, world = node * processes + local_rank, nodes * processes
    torch.set_num_threads(1)
    device = f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world)

    torch.manual_seed(0)
    inputs = torch.randn(8192, 2, device=device)
    targets = inputs @ torch.tensor([[3.0], [-2.0]], device=device) + 1
    net = torch.nn.Linear(2, 1).to(device)
    first = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location=device)
        net.load_state_dict(checkpoint["net"])
        first = checkpoint["epochs"]
    print(f"rank {rank} of {world} begins after epoch {first}", flush=True)

    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for epoch in range(first, EPOCHS):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for share in order[rank::world].split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[share]), targets[share])
            loss.backward()
            optimizer.step()
        if rank == 0 and (epoch + 1) % SAVE_EVERY == 0:
            torch.save({"net": net.state_dict(), "epochs": epoch + 1}, CHECKPOINT + ".new")
            os.replace(CHECKPOINT + ".new", CHECKPOINT)
            print(f"epoch {epoch + 1} | loss {loss.item():.6f} | saved", flush=True)

    weights = [f"{each:.3f}" for each in [*net.weight[0], *net.bias]]
    print(f"rank {rank} of {world} learnt {' '.join(weights)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
