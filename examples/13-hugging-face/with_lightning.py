"""Lightning: it finds torchrun's environment by itself, and resumes from `ckpt_path="last"`."""

import argparse
import os

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

WANTED = torch.tensor([[3.0], [-2.0]])


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_epoch_start(self):
        if self.current_epoch % 5 == 0 or self.trainer.global_step == self.begun_at:
            print(
                f"rank {self.global_rank} of {self.trainer.world_size} begins epoch"
                f" {self.current_epoch}",
                flush=True,
            )

    def on_train_start(self):
        self.begun_at = self.trainer.global_step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--accelerator", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    inputs = torch.randn(1280, 2)
    data = torch.utils.data.TensorDataset(inputs, inputs @ WANTED + 1)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = Regression()
    trainer = lightning.Trainer(
        accelerator=args.accelerator,
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),  # from torchrun: the number of workers
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint("checkpoints", save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path="last")
    values = " ".join(
        f"{each:.3f}" for each in [*model.layer.weight[0].tolist(), model.layer.bias.item()]
    )
    print(f"rank {trainer.global_rank} learnt {values}", flush=True)


if __name__ == "__main__":
    main()
