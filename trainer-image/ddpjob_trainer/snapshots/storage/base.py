"""The interface of a storage of snapshots, which is a directory or an object store.

`directory` and `object_store` implement it. This module must not depend on either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
    from ddpjob_trainer.snapshots.model.selection import StorageContents
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.model.write_plan import WriteAssignment
    from ddpjob_trainer.transfer.broadcast import StateSender


class SnapshotInfo(NamedTuple):
    """The size and the time of a snapshot, for people."""

    size: int
    written: float  # seconds since 1970


class OpenSnapshot(NamedTuple):
    """A whole snapshot, for readers of parts of it, which verify what they read."""

    manifest: dict[str, Any]
    read: Callable[[str, int, memoryview], None]  # fills the memory with a file's bytes from one on


class SnapshotStorage(Protocol):
    """Snapshots by step. If a step's snapshot is unusable, methods raise UnusableError."""

    where: str  # for log lines and errors
    keep: int  # snapshots to keep
    how_to_reset: str  # instruction to start without the existing snapshots

    def group(self) -> StorageGroup:
        """Return the ranks with this storage. Raise RuntimeError if the group breaks.

        Each rank must call this.
        """

    def fence(self, owner: Owner, step: int) -> Fence:
        """Fence all owners but `owner`, which resumes from `step`. Raise FencedError or OSError."""

    def make_room(self, size: int, fence: Fence | None) -> None:
        """Delete the oldest snapshots until `size` bytes fit; without a fence, only check.

        Raise SnapshotError, also FencedError, or OSError.
        """

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ...
    ) -> None:
        """Commit the snapshot durably unless it exists; alone, or as the first of several writers.

        Raise FencedError, PartsMissingError, SnapshotError or OSError.
        """

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Write a part durably for the first writer. Raise PartsMissingError or OSError."""

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """Return the snapshots from which `chooser` may select. Raise OSError."""

    def read(
        self, step: int, digest: str | None = None, sender: StateSender | None = None
    ) -> dict[str, Any]:
        """Return the verified state of the candidate with this digest. Raise OSError.

        If the storage can stream, the `sender` sends the state during the read.
        """

    def open(self, step: int, digest: str) -> OpenSnapshot:
        """Return the candidate with this digest, for reads of parts. Raise OSError."""

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """Return the manifest; with `content`, verify all bytes of the tensors, else sizes."""

    def info(self, step: int) -> SnapshotInfo:
        """Return the size and the time of a snapshot. Raise OSError."""

    def steps(self) -> list[int]:
        """Return the steps that are not fenced, newest first. Raise OSError."""

    def all_steps(self) -> list[int]:
        """Return the steps of all snapshots, newest first. Raise OSError."""

    def complete(self) -> list[int]:
        """Return the steps of the snapshots that look whole, newest first. Raise OSError."""

    def prune(self) -> list[int]:
        """Delete snapshots that retention does not keep; return their steps. Raise OSError."""

    def name(self, step: int) -> str:
        """Return the snapshot's name for log lines and errors."""

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Return the reason why a snapshot of `size` bytes could not be saved, and the remedy."""

    def is_transient(self, error: OSError) -> bool:
        """Return whether a later attempt may succeed without a repair."""
