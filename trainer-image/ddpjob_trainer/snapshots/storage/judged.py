"""Which snapshots of one storage count: the fences judge each, see `fencing`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ddpjob_trainer.snapshots.model import manifest
from ddpjob_trainer.snapshots.model.fencing import Fence, FenceLog, Origin, Owner, is_fenced
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.storage.fence_files import FenceFiles
from ddpjob_trainer.snapshots.storage.stored import SnapshotFiles, StoredSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddpjob_trainer.snapshots.storage.base import FileStore


class JudgedSnapshots:
    """The snapshots and the fences of one storage. Each method may raise OSError."""

    def __init__(self, files: FileStore) -> None:
        self.fences = FenceLog(FenceFiles(files))
        self.stored = SnapshotFiles(files)

    def shown(self) -> list[StoredSnapshot]:
        """Return the snapshots with a manifest, by step, then by fence, newest first."""
        return [copy for copy in self.stored.all() if copy.manifest]

    def complete(
        self, copies: Iterable[StoredSnapshot], fences: Sequence[Fence]
    ) -> list[StoredSnapshot]:
        """Return the snapshots that count and look whole; read no tensors."""
        return [c for c in copies if self.is_whole(c) and not self.is_fenced(c, fences)]

    def of(self, step: int) -> list[StoredSnapshot]:
        """Return the snapshots of one step, those that count first."""
        fences = self.fences.all()
        copies = [copy for copy in self.shown() if copy.step == step]
        return sorted(copies, key=lambda copy: self.is_fenced(copy, fences))

    def manifest(self, copy: StoredSnapshot) -> dict[str, Any]:
        """Return a snapshot's manifest; read no tensors. Raise UnusableError."""
        return self.stored.manifest(copy)

    def is_whole(self, copy: StoredSnapshot) -> bool:
        """Return whether a snapshot looks whole; read no tensors."""
        try:
            return copy.manifest is not None and bool(self.manifest(copy))
        except UnusableError:
            return False

    def counts(self, step: int) -> bool:
        """Return whether a snapshot of this step counts and is intact."""
        for copy in self.complete(self.of(step), self.fences.all()):
            with contextlib.suppress(UnusableError):
                self.stored.verify(copy)
                return True
        return False

    def origin(self, copy: StoredSnapshot, fences: Sequence[Fence]) -> Origin:
        """Return the step and the writer; the manifest or the writer's fence names the writer."""
        if copy.manifest is not None:
            with contextlib.suppress(UnusableError):
                return manifest.origin_of(self.manifest(copy))
        writer = next((fence.owner for fence in fences if fence.number == copy.fence), None)
        return Origin(copy.step, writer, copy.fence)

    def is_fenced(
        self, copy: StoredSnapshot, fences: Sequence[Fence], chooser: Owner | None = None
    ) -> bool:
        """Return whether a later owner limits a snapshot; the fences of `chooser` do not bind."""
        return is_fenced(self.origin(copy, fences), fences, chooser)


def steps_of(copies: Iterable[StoredSnapshot]) -> list[int]:
    """Return the steps, newest first."""
    return sorted({copy.step for copy in copies}, reverse=True)
