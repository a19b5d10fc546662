"""The snapshots of one storage: listed, read and verified one by one.

The format is described in docs/snapshot-format.md. This module does not decide which snapshots
count or which process may write. It changes no file.
"""

from __future__ import annotations

import hashlib
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.chunks import assemble
from ddpjob_trainer.snapshots.model.manifest import UnusableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from ddpjob_trainer.snapshots.storage.base import FileInfo, FileStore
    from ddpjob_trainer.transfer.broadcast import ChooseMemory, StateSender

_FOLDER = r"step-(?P<step>\d{12})/(?P<fence>\d{12})-[0-9a-z]+/"
_FILE = re.compile(
    rf"(?P<folder>{_FOLDER})(?:(?P<file>tensors(?:-[1-9]\d*)?\.safetensors)"
    r"|part-[1-9]\d*\.json|manifest-(?P<digest>[0-9a-f]{64})\.json)?"
)

_log = logging.getLogger("ddpjob")


def folder_of(step: int, fence: int, attempt_id: str) -> str:
    """Return the folder of a new snapshot; `attempt_id` is a random word."""
    return f"{manifest.name_of(step)}/{fence:012d}-{attempt_id}"


def manifest_name(record: bytes) -> str:
    """Return the file name of a manifest, which contains the manifest's checksum."""
    return f"manifest-{hashlib.sha256(record).hexdigest()}.json"


class StoredSnapshot(NamedTuple):
    """The files of one snapshot folder."""

    folder: str
    step: int
    fence: int
    written: float  # time of the newest file, by the storage's clock
    manifest: tuple[str, FileInfo] | None  # with the file's name; None: no snapshot yet
    files: dict[str, FileInfo]  # files with tensors, by name in the folder
    part_records: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the files, in the order of their deletion."""
        shown = [self.manifest[0]] if self.manifest else []
        return [*shown, *(f"{self.folder}/{name}" for name in self.files), *self.part_records]

    @property
    def is_half(self) -> bool:
        """True if there is no manifest, or nothing else."""
        return self.manifest is None or not self.files

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(file.size for file in self.files.values())


class OpenSnapshot(NamedTuple):
    """A whole snapshot, for readers of parts of it, which verify what they read."""

    manifest: dict[str, Any]
    read: Callable[[str, int, memoryview], None]  # fills the memory with a file's bytes from one on


class SnapshotFiles:
    """All snapshots of one storage."""

    def __init__(self, files: FileStore) -> None:
        self._files = files
        self._manifests: dict[tuple[str, FileInfo], dict[str, Any]] = {}  # of unchanged files
        self._ignored: set[str] = set()  # names that were reported

    def all(self) -> list[StoredSnapshot]:
        """Return the snapshots by step, then by fence, newest first. Raise OSError."""
        folders: dict[str, StoredSnapshot] = {}
        listed = self._files.list()
        self._manifests = {
            key: each for key, each in self._manifests.items() if key in listed.items()
        }
        for name, found in sorted(listed.items()):
            match = _FILE.fullmatch(name)
            if match is None:
                self._ignore(name)
                continue
            folder = match["folder"].rstrip("/")
            new = StoredSnapshot(
                folder, int(match["step"]), int(match["fence"]), found.written, None, {}, ()
            )
            copy = folders.get(folder, new)
            copy = copy._replace(written=max(copy.written, found.written))
            if match["digest"]:
                copy = copy._replace(manifest=(name, found))
            elif match["file"]:
                copy = copy._replace(files={**copy.files, match["file"]: found})
            elif not name.endswith("/"):
                copy = copy._replace(part_records=(*copy.part_records, name))
            folders[folder] = copy
        return sorted(folders.values(), key=lambda copy: copy[1:3], reverse=True)

    def _ignore(self, name: str) -> None:
        folder = name.partition("/")[0]
        if folder.startswith("step-") and folder not in self._ignored:
            self._ignored.add(folder)
            where = f"{self._files.where}/{name}"
            _log.warning("%s is ignored: not named like a part of a snapshot", where)

    def manifest(self, copy: StoredSnapshot) -> dict[str, Any]:
        """Return a snapshot's manifest; read no tensors. Raise UnusableError or OSError."""
        assert copy.manifest is not None
        found = self._manifests.get(copy.manifest)
        if found is None:
            found = self._read_manifest(copy, copy.manifest[0])
            self._manifests[copy.manifest] = found
        for name, expected in manifest.files_of(found).items():
            if name not in copy.files:
                raise UnusableError(f"it is incomplete: {name} is missing")
            manifest.check_size(name, expected, copy.files[name].size)
        return found

    def _read_manifest(self, copy: StoredSnapshot, name: str) -> dict[str, Any]:
        try:
            raw = self._files.get(name)
        except ValueError as error:
            raise UnusableError(f"it is damaged: {error}") from None
        except OSError as error:
            raise self._unreadable(error) from error
        if raw is None:
            raise UnusableError("it has just been deleted")
        if not name.endswith(manifest_name(raw)):
            raise UnusableError("it is damaged: its manifest does not match its name")
        found = manifest.parse(raw)
        manifest.check_step(found, manifest.name_of(copy.step))
        if (number := manifest.origin_of(found).number) != copy.fence:
            raise UnusableError(f"it was renamed: it is of fence {number}")
        return found

    def open(self, copy: StoredSnapshot) -> OpenSnapshot:
        """Return the snapshot, for reads of parts. Raise UnusableError or OSError."""
        return OpenSnapshot(self.manifest(copy), lambda *what: self._read_range(copy, *what))

    def _read_range(self, copy: StoredSnapshot, name: str, begin: int, into: memoryview) -> None:
        self._read(copy, name, begin, [into])

    def _read(
        self, copy: StoredSnapshot, name: str, begin: int, into: Sequence[memoryview]
    ) -> None:
        """Fill the memory with a file's bytes, unverified. Raise UnusableError or OSError."""
        try:
            if not self._files.read(f"{copy.folder}/{name}", begin, into):
                raise UnusableError("it has just been deleted")
        except ValueError:
            raise UnusableError(f"it is damaged: {name} ends early") from None
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> Exception:
        if not self._files.is_damage(error):
            return error
        return UnusableError(f"it cannot be read: {error.strerror}")

    def verify(self, copy: StoredSnapshot) -> None:
        """Read and verify each byte. Raise UnusableError or OSError."""
        from ddpjob_trainer.tensors.safetensors_reader import checksum  # noqa: PLC0415 - a list of snapshots needs no torch

        for name, expected in manifest.files_of(self.manifest(copy)).items():
            read = partial(self._read, copy, name)
            try:
                digest = checksum(read, expected.size, expected.kind, self._files.readers)
            except ValueError as error:
                raise UnusableError(str(error)) from None
            manifest.check_digest(name, expected, digest)

    def state(
        self,
        copy: StoredSnapshot,
        sender: StateSender | None = None,
        choose: ChooseMemory | None = None,
    ) -> dict[str, Any]:
        """Return the state, with each byte verified. Raise UnusableError or OSError.

        A `sender` sends the state during the read, before the verification. `choose` returns
        memory for some of the tensors.
        """
        from ddpjob_trainer.tensors import safetensors_reader, serialization  # noqa: PLC0415 - a list of snapshots needs no torch

        found = self.manifest(copy)
        try:
            tensors: dict[str, torch.Tensor] = {}
            files = {
                name: safetensors_reader.SafetensorsReader(
                    partial(self._read, copy, name),
                    expected.size,
                    expected.kind,
                    self._files.readers,
                )
                for name, expected in manifest.files_of(found).items()
            }
            if "sharded" in found:
                sender = None  # the loader sends the state when it is put together
            outlines = [each for file in files.values() for each in file.outlines]
            memory = None if choose is None else choose(found["state"], outlines)
            if sender is not None:
                sender.begin(serialization.node_of(found["state"]), outlines)
            for name, file in files.items():
                part, digest = file.read(None if sender is None else sender.add, memory)
                manifest.check_digest(name, manifest.files_of(found)[name], digest)
                tensors.update(part)
            tensors = assemble(found, tensors)
            return {
                part: serialization.restore(node, tensors) for part, node in found["state"].items()
            }
        except manifest.SENSELESS as error:
            self.verify(copy)  # damage is the most frequent cause of a senseless content
            raise UnusableError(f"its content makes no sense: {error!r}") from error
