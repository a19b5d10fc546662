"""Accelerate as its documentation shows it: `prepare`, `save_state`, `load_state`.

`ProjectConfiguration` numbers the checkpoints and keeps two of them. `load_state` takes the newest
directory, whether `save_state` finished it or not, so a start first removes the unfinished ones.
"""

import argparse
import pathlib
import shutil

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

CHECKPOINTS = pathlib.Path("project/checkpoints")
WANTED = torch.tensor([[3.0], [-2.0]])


class Progress:
    """The state that is saved beside the model and the optimizer."""

    def __init__(self):
        self.epoch = 0

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


def save(accelerator):
    """Save a checkpoint and mark it as finished when every process has written its part."""
    folder = accelerator.save_state()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "finished").write_text("all parts are written\n")


def resume(accelerator):
    """Load the newest finished checkpoint, if there is one; number the next ones after it."""
    if accelerator.is_local_main_process:
        for folder in CHECKPOINTS.glob("checkpoint_*"):
            if not (folder / "finished").exists():
                shutil.rmtree(folder, ignore_errors=True)
    accelerator.wait_for_everyone()
    finished = [int(folder.name.split("_")[1]) for folder in CHECKPOINTS.glob("checkpoint_*")]
    if finished:
        accelerator.load_state()
        accelerator.project_configuration.iteration = max(finished) + 1


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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    resume(accelerator)
    accelerator.print(f"{accelerator.num_processes} processes begin after epoch {progress.epoch}")
    while progress.epoch < args.epochs:
        for features, targets in loader:
            loss = torch.nn.functional.mse_loss(model(features), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        progress.epoch += 1
        accelerator.print(f"epoch {progress.epoch} | loss {loss.item():.6f}", flush=True)
        save(accelerator)
    learnt = accelerator.unwrap_model(model)
    values = " ".join(f"{each:.3f}" for each in [*learnt.weight[0].tolist(), learnt.bias.item()])
    print(f"rank {accelerator.process_index} learnt {values}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
