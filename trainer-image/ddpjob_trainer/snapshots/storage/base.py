"""What Snapshots needs of the place where snapshots lie: a directory or an object store.

`directory` is the one, `object_store` the other. May not: know which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.fencing import Fence, Owner
    from ddpjob_trainer.snapshots.model.selection import StorageContents
    from ddpjob_trainer.snapshots.model.staging import StagedState
    from ddpjob_trainer.snapshots.model.write_plan import WriteAssignment
    from ddpjob_trainer.transfer.broadcast import StateSender


class SnapshotInfo(NamedTuple):
    """What a snapshot looks like from outside, for people."""

    size: int
    written: float  # seconds since 1970


class SnapshotStorage(Protocol):
    """Snapshots by step. What takes a step raises UnusableError if that one cannot be used."""

    where: str  # for people
    keep: int  # snapshots that stay
    how_to_reset: str  # what to do to start without what is there

    def group(self) -> StorageGroup:
        """Every rank asks. Raises RuntimeError if the group breaks."""

    def fence(self, owner: Owner, step: int) -> Fence:
        """From now on `owner` alone goes on, from this step. Raises FencedError and OSError."""

    def commit(
        self, step: int, content: StagedState, fence: Fence, part: WriteAssignment = ...
    ) -> None:
        """Make the snapshot exist, durably, unless it does; alone, or as the first of several.

        Raises FencedError, PartsMissingError, SnapshotError and OSError.
        """

    def write_part(self, step: int, content: StagedState, part: WriteAssignment) -> None:
        """Write, durably, what the first one waits for. Raises PartsMissingError and OSError."""

    def list_candidates(self, ranks: tuple[int, ...], chooser: Owner) -> StorageContents:
        """What there is for `chooser` to choose from. Raises OSError."""

    def read(
        self, step: int, digest: str | None = None, giver: StateSender | None = None
    ) -> dict[str, Any]:
        """The state, verified; the one that was offered by that digest. Raises OSError, too.

        Where it can be sent on while it is read, the `giver` does.
        """

    def check(self, step: int, *, content: bool = True) -> dict[str, Any]:
        """The manifest; every byte of the tensors is compared, or their size only."""

    def info(self, step: int) -> SnapshotInfo:
        """Raises OSError."""

    def steps(self) -> list[int]:
        """Those that may be gone on from, newest first. Raises OSError."""

    def all_steps(self) -> list[int]:
        """All that there are, newest first. Raises OSError."""

    def complete(self) -> list[int]:
        """Those that look whole, newest first. Raises OSError."""

    def prune(self) -> list[int]:
        """Delete what need not stay; returns the steps. Raises OSError."""

    def held_in_memory(self) -> int | None:
        """Bytes of this machine's memory that they take; None where they lie elsewhere."""

    def name(self, step: int) -> str:
        """For people."""

    def explain_error(self, error: OSError, size: int) -> tuple[str, str]:
        """Why a snapshot of that size could not be saved, and what to do."""

    def is_transient(self, error: OSError) -> bool:
        """Whether a later try may succeed although nobody does anything."""
