"""Writes a state, or a model's state_dict, in a format that other programs read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.storage import durable

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("torch", "safetensors", "dcp")


def write(content: dict[str, Any], path: Path, kind: str) -> None:
    """Write a new file, or with "dcp" a new directory. Raise SnapshotError or OSError."""
    import torch  # noqa: PLC0415 - a list of snapshots needs no torch

    if kind == "torch":
        torch.save(content, path)
    elif kind == "dcp":
        from torch.distributed import checkpoint  # noqa: PLC0415 - as torch, and slow

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that one process saves: so it is meant
            checkpoint.save(content, checkpoint_id=path, no_dist=True)
    else:
        _write_safetensors(content, path)


def _write_safetensors(content: dict[str, Any], path: Path) -> None:
    from ddpjob_trainer.tensors.safetensors_writer import SafetensorsBuffer  # noqa: PLC0415 - torch

    others = sorted(name for name, each in content.items() if not hasattr(each, "untyped_storage"))
    if others:
        raise SnapshotError(
            f"A safetensors file holds tensors only, and {others[0]} is none. Leave out --all, or "
            "choose --format torch or dcp."
        )
    buffer = SafetensorsBuffer(content, {"format": "pt"})
    buffer.stream_to(lambda chunks: durable.write_all(chunks, path))
