"""The snapshots below a prefix of an object store: listed, read and verified one by one.

The format is described in docs/snapshot-format.md; `snapshot_dir` does this for a directory. This
module does not decide which snapshots count or which process may write. It changes no object.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.chunks import assemble
from ddpjob_trainer.snapshots.model.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ddpjob_trainer.snapshots.storage.obstore_client import ObjectClient, ObjectInfo

_PART = re.compile(
    r"(?P<folder>step-(?P<step>\d{12})/(?P<fence>\d{12})-[0-9a-f]{8})/"
    r"(?:(?P<file>tensors(?:-[1-9]\d*)?\.safetensors)|part-[1-9]\d*\.json"
    r"|manifest-(?P<digest>[0-9a-f]{64})\.json)"
)


def folder_of(step: int, fence: int, word: str) -> str:
    """Return the folder of a new snapshot; `word` is eight random hexadecimal digits."""
    return f"{manifest.name_of(step)}/{fence:012d}-{word}"


def record_name(record: bytes) -> str:
    """Return the object name of a manifest, which contains the manifest's checksum."""
    return f"manifest-{hashlib.sha256(record).hexdigest()}.json"


class StoredSnapshot(NamedTuple):
    """The objects of one snapshot folder."""

    folder: str
    step: int
    fence: int
    manifest: str | None  # name of the object
    files: dict[str, ObjectInfo]  # files with tensors, by name in the folder
    words: tuple[str, ...]  # names of the part records, for the first writer
    written: ObjectInfo  # the newest object

    @property
    def names(self) -> list[str]:
        """The names of the snapshot's objects, in the order of their deletion."""
        shown = [self.manifest] if self.manifest else []
        return [*shown, *(f"{self.folder}/{name}" for name in self.files), *self.words]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(file.size for file in self.files.values())


class ObjectListing:
    """All snapshots below one prefix."""

    def __init__(self, objects: ObjectClient) -> None:
        self._objects = objects
        self._manifests: dict[str, dict[str, Any]] = {}  # by name; manifests never change

    def all(self) -> list[StoredSnapshot]:
        """Return the snapshots by step, then by fence, newest first. Raise OSError."""
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
        """Return a snapshot's manifest; read no tensors. Raise UnusableError or OSError."""
        assert copy.manifest is not None
        found = self._manifests.get(copy.manifest)
        if found is None:
            try:
                raw = self._objects.get(copy.manifest)
            except ValueError as error:
                raise UnusableError(f"it is damaged: {error}") from None
            if raw is None:
                raise UnusableError("it has just been deleted")
            if not copy.manifest.endswith(record_name(raw)):
                raise UnusableError("it is damaged: its manifest does not match its name")
            found = manifest.parse(raw)
            manifest.check_step(found, manifest.name_of(copy.step))
            if (number := manifest.origin_of(found).number) != copy.fence:
                raise UnusableError(f"it was renamed: it is of fence {number}")
            self._manifests[copy.manifest] = found
        for name, expected in manifest.files_of(found).items():
            if name not in copy.files:
                raise UnusableError(f"it is incomplete: {name} is missing")
            manifest.check_size(name, expected, copy.files[name].size)
        return found

    def read_range(self, copy: StoredSnapshot, name: str, begin: int, into: memoryview) -> None:
        """Fill `into` with a file's bytes, unverified. Raise UnusableError or OSError."""
        if not self._objects.fetch(f"{copy.folder}/{name}", into, lambda _: None, begin):
            raise UnusableError("it has just been deleted")

    def blocks(self, copy: StoredSnapshot) -> Iterator[torch.Tensor]:
        """Yield the verified files with tensors. Raise UnusableError or OSError."""
        import torch  # noqa: PLC0415 - a list of snapshots needs no torch

        from ddpjob_trainer.tensors import safetensors_writer  # noqa: PLC0415 - the same

        for name, expected in manifest.files_of(self.manifest(copy)).items():
            try:
                digest = safetensors_writer.hasher(expected.kind)
            except ValueError as error:
                raise UnusableError(str(error)) from None
            block = torch.empty(expected.size, dtype=torch.uint8, device="cpu")
            if not self._objects.fetch(
                f"{copy.folder}/{name}", safetensors_writer.raw(block), digest.update
            ):
                raise UnusableError("it has just been deleted")
            manifest.check_digest(name, expected, digest.hexdigest())
            yield block

    def verify(self, copy: StoredSnapshot) -> None:
        """Read and verify each byte. Raise UnusableError or OSError."""
        for _ in self.blocks(copy):
            pass

    def state(self, copy: StoredSnapshot) -> dict[str, Any]:
        """Return the verified state of a snapshot. Raise UnusableError or OSError."""
        from ddpjob_trainer.tensors import safetensors_reader, serialization  # noqa: PLC0415 - a list of snapshots needs no torch

        found = self.manifest(copy)
        tensors: dict[str, torch.Tensor] = {}
        try:
            for block in self.blocks(copy):
                tensors.update(safetensors_reader.tensors(block))
            tensors = assemble(found, tensors)
            return {
                part: serialization.restore(node, tensors) for part, node in found["state"].items()
            }
        except manifest.SENSELESS as error:
            raise UnusableError(f"its content makes no sense: {error!r}") from error
