"""The checks of a loop's options: its length, and how each batch is divided."""

from __future__ import annotations

from typing import Any

import torch


def check_length(steps: int | None, epochs: int | None, loader: Any) -> None:
    """Raise ValueError unless the loop has one length."""
    if (steps is None) == (epochs is None) or (epochs is not None and loader is None):
        raise ValueError("a Loop needs either steps, or epochs and a loader")
    if (steps or 0) < 0 or (epochs or 0) < 0:
        raise ValueError(f"steps is {steps}, epochs is {epochs}: they count what is to do")


def check_division(
    loader: Any,
    accumulate: int,
    deterministic: int | None,
    ddp_options: dict[str, Any],
    *,
    balance: bool,
) -> None:
    """Raise ValueError if these ways to divide a batch exclude each other."""
    if deterministic is not None:
        _check_deterministic(deterministic, loader, ddp_options)
    if balance and (loader is None or deterministic is not None):
        raise ValueError("balance needs a loader, and cannot be deterministic: it goes by time")
    if accumulate < 1 or (accumulate > 1 and (loader is None or deterministic is not None)):
        raise ValueError(
            f"accumulate is {accumulate}: it counts the batches of a loader that form one step. In "
            "deterministic mode, which divides each batch already, use larger batches and more shards"
        )


def _check_deterministic(shards: int, loader: Any, ddp_options: dict[str, Any]) -> None:
    if loader is None or ddp_options:
        raise ValueError("deterministic needs a loader, and takes no options of DDP")
    if shards < 1 or shards & (shards - 1):
        raise ValueError(f"deterministic is {shards}: a power of two is needed, as 8")
    torch.use_deterministic_algorithms(True, warn_only=True)
