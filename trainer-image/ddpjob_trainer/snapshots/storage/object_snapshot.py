"""The snapshots below a prefix of an object store, one by one: found, read and verified.

The format is described in docs/snapshot-format.md; `snapshot_dir` is this for a directory. Knows neither
which of them counts nor who may write; it never changes anything.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.tensors import safetensors_reader, safetensors_writer, serialization

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient, ObjectInfo

_PART = re.compile(
    r"(?P<folder>step-(?P<step>\d{12})/(?P<fence>\d{12})-[0-9a-f]{8})/"
    r"(?:(?P<file>tensors(?:-[1-9]\d*)?\.safetensors)|part-[1-9]\d*\.json"
    r"|manifest-(?P<digest>[0-9a-f]{64})\.json)"
)


def folder_of(step: int, fence: int, word: str) -> str:
    """Where a new one goes; `word` is eight random hexadecimal digits."""
    return f"{manifest.name_of(step)}/{fence:012d}-{word}"


def record_name(record: bytes) -> str:
    """Of a manifest: it holds its checksum."""
    return f"manifest-{hashlib.sha256(record).hexdigest()}.json"


class StoredSnapshot(NamedTuple):
    """What lies in one folder."""

    folder: str
    step: int
    fence: int
    manifest: str | None  # name of the object
    files: dict[str, ObjectInfo]  # with tensors, by name in the folder
    words: tuple[str, ...]  # of writers, to the one that puts it together
    written: ObjectInfo  # the newest of it

    @property
    def names(self) -> list[str]:
        """Its objects, in the order in which they may go."""
        shown = [self.manifest] if self.manifest else []
        return [*shown, *(f"{self.folder}/{name}" for name in self.files), *self.words]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(file.size for file in self.files.values())


class ObjectListing:
    """All of them."""

    def __init__(self, objects: ObjectClient) -> None:
        self._objects = objects
        self._manifests: dict[str, dict[str, Any]] = {}  # by name: they never change

    def all(self) -> list[StoredSnapshot]:
        """Newest first: by step, then by fence. Raises OSError."""
        folders: dict[str, StoredSnapshot] = {}
        listed = self._objects.list()
        self._manifests = {n: each for n, each in self._manifests.items() if n in listed}
        for name, found in sorted(listed.items()):
            match = _PART.fullmatch(name)
            if match is None:
                continue
            folder = match["folder"]
            empty = StoredSnapshot(
                folder, int(match["step"]), int(match["fence"]), None, {}, (), found
            )
            copy = folders.get(folder, empty)
            newest = max(copy.written, found, key=lambda each: each.written)
            if match["digest"]:
                folders[folder] = copy._replace(manifest=name, written=newest)
            elif match["file"]:
                files = {**copy.files, match["file"]: found}
                folders[folder] = copy._replace(files=files, written=newest)
            else:
                folders[folder] = copy._replace(words=(*copy.words, name), written=newest)
        return sorted(folders.values(), key=lambda copy: copy[1:3], reverse=True)

    def manifest(self, copy: StoredSnapshot) -> dict[str, Any]:
        """What it says of itself; tensors are not read. Raises UnusableError and OSError."""
        assert copy.manifest is not None
        found = self._manifests.get(copy.manifest)
        if found is None:
            raw = self._objects.get(copy.manifest)
            if raw is None:
                raise UnusableError("it has just been deleted")
            if not copy.manifest.endswith(record_name(raw)):
                raise UnusableError("it is damaged: its manifest is not the one that its name says")
            found = manifest.parse(raw)
            manifest.check_step(found, manifest.name_of(copy.step))
            if manifest.fence_of(found) != copy.fence:
                raise UnusableError(f"it was renamed: it is of fence {manifest.fence_of(found)}")
            self._manifests[copy.manifest] = found
        for name, expected in manifest.files_of(found).items():
            if name not in copy.files:
                raise UnusableError(f"it is incomplete: {name} is missing")
            manifest.check_size(name, expected, copy.files[name].size)
        return found

    def blocks(self, copy: StoredSnapshot) -> Iterator[torch.Tensor]:
        """The files with tensors, each verified. Raises UnusableError and OSError."""
        for name, expected in manifest.files_of(self.manifest(copy)).items():
            try:
                digest = safetensors_writer.hasher(expected.kind)
            except ValueError as error:
                raise UnusableError(str(error)) from None
            block = torch.empty(expected.size, dtype=torch.uint8)
            if not self._objects.fetch(
                f"{copy.folder}/{name}", safetensors_writer.raw(block), digest.update
            ):
                raise UnusableError("it has just been deleted")
            manifest.check_digest(name, expected, digest.hexdigest())
            yield block

    def verify(self, copy: StoredSnapshot) -> None:
        """Reads every byte. Raises UnusableError and OSError."""
        for _ in self.blocks(copy):
            pass

    def state(self, copy: StoredSnapshot) -> dict[str, Any]:
        """What it holds, verified. Raises UnusableError and OSError."""
        found = self.manifest(copy)
        tensors: dict[str, torch.Tensor] = {}
        try:
            for block in self.blocks(copy):
                tensors.update(safetensors_reader.tensors(block))
            return {
                part: serialization.restore(node, tensors) for part, node in found["state"].items()
            }
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            raise UnusableError(f"its content makes no sense: {error!r}") from error
