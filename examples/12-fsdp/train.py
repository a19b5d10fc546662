"""FSDP2: each process holds a part of the model, and any number of them can load a snapshot."""

import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, SAVE_EVERY, KEEP, BATCH = 400, 20, 2, 64
FOLDER = "checkpoints"


class Training(Stateful):
    """Model and optimizer, as torch.distributed.checkpoint saves and loads them."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer,
            model_state_dict=state["model"], optim_state_dict=state["optimizer"],
        )  # fmt: skip


def saved_steps():
    """Return the complete checkpoints, the newest first: `.metadata` is written last."""
    names = os.listdir(FOLDER) if os.path.isdir(FOLDER) else []
    whole = [name for name in names if os.path.exists(f"{FOLDER}/{name}/.metadata")]
    return sorted((int(name.removeprefix("step-")) for name in whole), reverse=True)


def main():
    torch.set_num_threads(1)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(kind, (world,))

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).flatten(1) / 16
    labels = torch.tensor(digits.target, device=device)
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[mixed], labels[mixed]
    count = len(labels) * 4 // 5
    torch.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).to(device)
    whole = sum(parameter.numel() for parameter in model.parameters())
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def held_out_loss():
        with torch.no_grad():
            return nn.functional.cross_entropy(model(images[count:]), labels[count:]).item()

    found = [saved_steps()]
    dist.broadcast_object_list(found)  # what the first rank sees is what counts
    start = found[0][0] if found[0] else 0
    if start:
        dcp.load({"training": Training(model, optimizer)}, checkpoint_id=f"{FOLDER}/step-{start}")
    mine = sum(parameter.to_local().numel() for parameter in model.parameters())
    loss = held_out_loss()
    print(f"rank {rank} of {world} holds {mine} of {whole} | step {start} | {loss:.6f}", flush=True)

    for step in range(start, STEPS):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(step))
        share = order[:BATCH][rank::world]
        optimizer.zero_grad()
        total = nn.functional.cross_entropy(model(images[share]), labels[share], reduction="sum")
        (total * world / BATCH).backward()  # FSDP averages: the mean over the batch
        optimizer.step()
        if (step + 1) % SAVE_EVERY == 0:
            dcp.save(
                {"training": Training(model, optimizer)},
                checkpoint_id=f"{FOLDER}/step-{step + 1}",
            )
            loss = held_out_loss()
            if rank == 0:
                print(f"saved step {step + 1} | {loss:.6f}", flush=True)
                for old in saved_steps()[KEEP:]:
                    shutil.rmtree(f"{FOLDER}/step-{old}")

    with torch.no_grad():
        correct = model(images[count:]).argmax(1) == labels[count:]
    if rank == 0:
        print(f"accuracy {correct.float().mean().item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
