"""One snapshot folder: tensors, a manifest with checksums, and the commit record, written last.

The format is described in docs/snapshot-format.md. Knows one folder at a time: neither which is
the newest nor who may write; it never deletes and never renames.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpjob_trainer import durable, image, manifest, tree
from ddpjob_trainer.content import Content
from ddpjob_trainer.manifest import MANIFEST, TENSORS, UnusableError, name_of, step_of

if TYPE_CHECKING:
    from ddpjob_trainer.choice import Offer
    from ddpjob_trainer.fences import Fence

__all__ = [
    "COMMIT",
    "MANIFEST",
    "TENSORS",
    "Content",
    "UnusableError",
    "check",
    "name_of",
    "offer",
    "read",
    "step_of",
    "write",
]

COMMIT = "COMMIT"


def write(folder: Path, content: Content, fence: Fence) -> None:
    """Fills the empty folder, durably, behind the fence. Raises OSError."""
    record = content.pour(lambda chunks: durable.write_all(chunks, folder / TENSORS), fence)
    durable.write(folder / MANIFEST, record)
    durable.write(folder / COMMIT, _commit_record(record))
    durable.sync(folder)


def check(folder: Path, *, content: bool = True) -> dict[str, Any]:
    """The manifest of a whole snapshot. Raises UnusableError.

    With `content=False` only sizes are compared: cheap, and blind to flipped bits in tensors.
    """
    try:
        return _check(folder, content)
    except FileNotFoundError as error:
        raise UnusableError(f"it is incomplete: {Path(error.filename).name} is missing") from None
    except OSError as error:
        raise UnusableError(f"it cannot be read: {error.strerror}") from error


def offer(folder: Path) -> Offer:
    """What a whole snapshot is told as; tensors are not read. Raises UnusableError."""
    return manifest.offer(check(folder, content=False))


def read(folder: Path) -> dict[str, Any]:
    """The state in a whole snapshot, every byte of it verified. Raises UnusableError."""
    found = check(folder, content=False)
    try:
        tensors, digest = image.load(folder / TENSORS, manifest.expected_of(found).kind)
        manifest.check_digest(found, digest)
        return {part: tree.restore(node, tensors) for part, node in found["state"].items()}
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        check(folder)  # what is damaged mostly makes no sense
        raise UnusableError(f"its content makes no sense: {error!r}") from error


def _check(folder: Path, content: bool) -> dict[str, Any]:
    raw = (folder / MANIFEST).read_bytes()
    found = manifest.parse(raw)
    if (folder / COMMIT).read_bytes() != _commit_record(raw):
        raise UnusableError(f"it is damaged: {MANIFEST} is not the one that {COMMIT} names")
    manifest.check_step(found, folder.name)
    path = folder / TENSORS
    manifest.check_size(found, path.stat().st_size)
    if content:
        try:
            digest = image.checksum(path, manifest.expected_of(found).kind)
        except ValueError as error:
            raise UnusableError(str(error)) from None
        manifest.check_digest(found, digest)
    return found


def _commit_record(record: bytes) -> bytes:
    return f"{hashlib.sha256(record).hexdigest()}  {MANIFEST}\n".encode()
