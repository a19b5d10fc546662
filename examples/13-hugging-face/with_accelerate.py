"""Accelerate as its documentation shows it: `prepare`, `save_state`, `load_state`.

`ProjectConfiguration` numbers the checkpoints and keeps two of them.
"""

import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

WANTED = torch.tensor([[3.0], [-2.0]])


class Progress:
    """What is saved beside the model and the optimizer."""

    def __init__(self):
        self.epoch = 0

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = ProjectConfiguration("project", automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=args.cpu, project_config=config)
    set_seed(0)
    inputs = torch.randn(1280, 2)
    data = torch.utils.data.TensorDataset(inputs, inputs @ WANTED + 1)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if os.path.isdir("project/checkpoints") and os.listdir("project/checkpoints"):
        accelerator.load_state()
        newest = max(int(name.split("_")[1]) for name in os.listdir("project/checkpoints"))
        accelerator.project_configuration.iteration = newest + 1
    accelerator.print(f"{accelerator.num_processes} processes begin after epoch {progress.epoch}")
    while progress.epoch < args.epochs:
        for features, targets in loader:
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        progress.epoch += 1
        accelerator.print(f"epoch {progress.epoch} | loss {loss.item():.6f}", flush=True)
        accelerator.save_state()
    learnt = accelerator.unwrap_model(model)
    values = " ".join(f"{each:.3f}" for each in [*learnt.weight[0].tolist(), learnt.bias.item()])
    print(f"rank {accelerator.process_index} learnt {values}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
