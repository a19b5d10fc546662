"""The files with the keys of simulated pods, in place of the Secrets of a cluster."""

from __future__ import annotations

from pathlib import Path


def write_keys(folder: Path, name: str, text: str) -> str:
    """Write a file that only this user can read; return its path."""
    path = folder / f"{name}.keys"
    path.touch(mode=0o600)
    path.write_text(text)
    return str(path)
