"""One snapshot folder: tensors, a manifest with checksums, and the commit record, written last.

The format is described in docs/snapshot-format.md. Knows one folder at a time: neither which is
the newest nor who may write; it never deletes and never renames.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from ddpjob_trainer import durable, tree
from ddpjob_trainer.choice import Offer
from ddpjob_trainer.fences import Fence, Owner
from ddpjob_trainer.image import CHECKSUM, Image, Memory, checksum

if TYPE_CHECKING:
    from collections.abc import Container


FORMAT = "ddpjob-snapshot"
VERSION = 2
READABLE = (1, 2)
TENSORS = "tensors.safetensors"
MANIFEST = "manifest.json"
COMMIT = "COMMIT"


class UnusableError(Exception):
    """A folder is no whole snapshot that this version can read; the text says why."""


def name_of(step: int) -> str:
    """The folder's name, such as step-000000000123."""
    return f"step-{step:012d}"


def step_of(name: str) -> int | None:
    """Inverse of name_of(); None for any other name."""
    match = re.fullmatch(r"step-(\d{12})", name)
    return int(match[1]) if match else None


class Content:
    """A state made ready to be written, with its size known before the first byte."""

    def __init__(self, step: int, state: dict[str, Any]) -> None:
        """Raises SnapshotError when the state holds something that has no form in a snapshot."""
        self._step = step
        self._state: dict[str, Any] = {}
        tensors: dict[str, torch.Tensor] = {}
        for part, value in state.items():
            self._state[part], found = tree.flatten(value, part)
            tensors.update(found)
        self._tensors = tensors
        self._versions = {name: tensor._version for name, tensor in tensors.items()}  # noqa: SLF001
        self._image = Image(tensors)

    @property
    def size(self) -> int:
        """Bytes on disk, within a few kilobytes."""
        return self._image.size + len(json.dumps(self._state)) + 4096

    def place(self, memory: Memory) -> None:
        """Where the copy goes. Raises SnapshotError if there is no memory for it."""
        self._image.place(memory)

    def copy(self, storages: Container[int] = (), *, inside: bool = False) -> bool:
        """Copy tensors that lie outside of these storages, or inside; they may change from then on.

        False if they have changed since this was made.
        """
        chosen = {
            name: tensor
            for name, tensor in self._tensors.items()
            if (tensor.untyped_storage().data_ptr() in storages) is inside
        }
        self._image.copy(chosen)
        return all(tensor._version == self._versions[name] for name, tensor in chosen.items())  # noqa: SLF001 - torch's own way to find it out

    def write(self, folder: Path, fence: Fence) -> None:
        """Fills the empty folder, durably, behind the fence. Raises OSError."""
        digest = self._image.write(folder / TENSORS)
        manifest = json.dumps({
            "format": FORMAT,
            "version": VERSION,
            "step": self._step,
            "fence": fence.number,
            "writer": {"job": fence.owner.job, "membership": fence.owner.membership},
            "torch": torch.__version__,
            "code": _code(),
            "files": {TENSORS: {"size": self._image.size, CHECKSUM: digest}},
            "state": self._state,
        }, allow_nan=False).encode()  # fmt: skip
        durable.write(folder / MANIFEST, manifest)
        durable.write(folder / COMMIT, _commit_record(manifest))
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
    manifest = check(folder, content=False)
    content = [manifest[name] for name in ("step", "files", "state")]  # the same in each copy
    writer = manifest.get("writer")
    return Offer(
        manifest["step"],
        hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest(),
        writer and Owner(str(writer["job"]), str(writer["membership"])),
    )


def read(folder: Path) -> dict[str, Any]:
    """The state in a whole snapshot, every byte of it verified. Raises UnusableError."""
    manifest = check(folder)
    try:
        mapped = safetensors.torch.load_file(str(folder / TENSORS))
        # A mapped tensor keeps a deleted file on the disk, and lies unaligned: sums over it
        # round differently, and the resumed run would leave the path of the undisturbed one.
        tensors = {name: tensor.clone() for name, tensor in mapped.items()}
        return {part: tree.restore(node, tensors) for part, node in manifest["state"].items()}
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UnusableError(f"its content makes no sense: {error!r}") from error


def _check(folder: Path, content: bool) -> dict[str, Any]:
    raw = (folder / MANIFEST).read_bytes()
    try:
        manifest = json.loads(raw)
    except ValueError:
        raise UnusableError(f"it is damaged: {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UnusableError(f"it is not a ddpjob snapshot: {MANIFEST} does not say {FORMAT}")
    if manifest.get("version") not in READABLE:
        raise UnusableError(
            f"it has format version {manifest.get('version')}, this ddpjob_trainer reads up to "
            f"{VERSION}"
        )
    if (folder / COMMIT).read_bytes() != _commit_record(raw):
        raise UnusableError(f"it is damaged: {MANIFEST} is not the one that {COMMIT} names")
    if folder.name != name_of(manifest["step"]):
        raise UnusableError(f"it was renamed: it holds step {manifest['step']}")
    expected, path = manifest["files"][TENSORS], folder / TENSORS
    size = path.stat().st_size
    if size != expected["size"]:
        raise UnusableError(
            f"it is damaged: {TENSORS} has {size} bytes instead of {expected['size']}"
        )
    if content and not _matches(path, expected):
        raise UnusableError(f"it is damaged: the checksum of {TENSORS} does not match")
    return manifest


def _matches(path: Path, expected: dict[str, Any]) -> bool:
    [(kind, digest)] = [(kind, each) for kind, each in expected.items() if kind != "size"]
    try:
        return checksum(path, kind) == str(digest)
    except ValueError as error:
        raise UnusableError(str(error)) from None


@functools.cache
def _code() -> dict[str, str]:
    """The script that runs, for people."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        content = Path(path or "").read_bytes()
    except OSError:
        return {}
    return {"script": Path(str(path)).name, "sha256": hashlib.sha256(content).hexdigest()}


def _commit_record(manifest: bytes) -> bytes:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()
