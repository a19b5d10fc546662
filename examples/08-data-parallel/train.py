"""Handwritten digits with DataParallel: one process, which splits each batch over its GPUs."""

import os
import time

import torch
from sklearn.datasets import load_digits
from torch import nn

EPOCHS = 60
CHECKPOINT = "checkpoint.pt"


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, device=device)
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[mixed], labels[mixed]
    held_out = len(labels) // 5

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).to(device)  # fmt: skip
    first = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, map_location=device)
        net.load_state_dict(checkpoint["net"])
        first = checkpoint["epochs"]
    print(
        f"training on {max(1, torch.cuda.device_count())} device(s) after epoch {first}", flush=True
    )

    model = nn.DataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(first, EPOCHS):
        began = time.perf_counter()
        order = torch.randperm(len(labels) - held_out)
        for chosen in order.split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
        speed = len(order) / (time.perf_counter() - began)
        torch.save({"net": net.state_dict(), "epochs": epoch + 1}, CHECKPOINT + ".new")
        os.replace(CHECKPOINT + ".new", CHECKPOINT)
        print(f"epoch {epoch + 1} | loss {loss.item():.4f} | {speed:.0f} images/s", flush=True)

    with torch.no_grad():
        correct = model(images[-held_out:]).argmax(1) == labels[-held_out:]
    print(f"accuracy {correct.float().mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
