"""The joint load of all ranks: agree on a snapshot, read it, and send it to ranks without it.

If each worker has its own directory, each snapshot is in all directories, so the loss of a node
loses no snapshot. The reading rank verifies each byte. If a snapshot fails the check, all ranks
exclude that copy and select again. This module does not depend on models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddpjob_trainer import collectives
from ddpjob_trainer.errors import SnapshotError
from ddpjob_trainer.snapshots.model.manifest import UnusableError
from ddpjob_trainer.snapshots.model.selection import Selection, StorageContents, select_snapshot
from ddpjob_trainer.tensors import training_state
from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion
from ddpjob_trainer.transfer.broadcast import StateSender, receive_state

if TYPE_CHECKING:
    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.fencing import Owner
    from ddpjob_trainer.snapshots.own_memory import OwnMemory
    from ddpjob_trainer.snapshots.storage.snapshot_storage import SnapshotStorage
    from ddpjob_trainer.snapshots.storage.stored import OpenSnapshot

_log = logging.getLogger("ddpjob")

OnResume = Callable[[int, list[int], "Owner | None"], bool]


class SnapshotLoader:
    """One load by all ranks together."""

    def __init__(
        self,
        storage: SnapshotStorage,
        rank: int,
        storage_group: StorageGroup,
        owner: Owner,
        read_part: Callable[[OpenSnapshot], dict[str, Any]] | None = None,
        own: OwnMemory | None = None,
    ) -> None:
        """Take the storage, and the memory of the model.

        `read_part` reads on each rank what that rank holds of a snapshot.
        """
        self._storage = storage
        self._rank = rank
        self._storage_group = storage_group
        self._owner = owner
        self._choose = None if own is None else own.choose
        self._read_part = read_part
        self._without: set[tuple[int, str]] = set()
        self._reasons: list[str] = []
        self.is_in_own_storage = False  # the loaded snapshot, if it was not only sent by others

    def load_agreed(
        self, check_writer: Callable[[Owner | None], None], on_resume: OnResume
    ) -> tuple[int, dict[str, Any]] | None:
        """Return the step and the state, equal on all ranks; None if there is no snapshot.

        Each rank calls `check_writer` with the writer of a snapshot before it reads the snapshot.

        The first rank of each storage calls `on_resume(step, existing_steps, writer)`, the writer of
        the chosen snapshot, if any. This call fences all other writers. It returns True if the
        storage has new steps beside `existing_steps`. Raise SnapshotError on all ranks.
        """
        while True:
            contents, existing_steps = self._report_resumed()
            choice = select_snapshot(contents, self_owner=self._owner, excluded=self._without)
            if choice is None:
                self._explain(contents)
                found = None
            else:
                check_writer(choice.writer)
                content = self._read(choice, contents)
                if content is None:
                    continue
                found = choice.step, content
                own = self._storage_group.ranks
                self.is_in_own_storage = not choice.ranks.isdisjoint(own)
            if not self._begin(on_resume, choice, existing_steps):
                return found

    def _report_resumed(self) -> tuple[list[StorageContents], list[int]]:
        mine: StorageContents | str | None = None
        existing_steps: list[int] = []
        if self._rank == self._storage_group.ranks[0]:
            try:
                existing_steps = self._storage.all_steps()
                mine = self._storage.list_candidates(self._storage_group.readers, self._owner)
            except OSError as error:
                mine = _cannot_read(self._storage.where, error)
        gathered = collectives.all_gather_objects(mine)
        for each in gathered:
            if isinstance(each, str):
                raise SnapshotError(each)
        return [each for each in gathered if each is not None], existing_steps

    def _explain(self, contents: list[StorageContents]) -> None:
        """Raise SnapshotError if there are snapshots, but none is usable."""
        reasons = [*self._reasons, *(why for each in contents for why in each.unusable)]
        if reasons:
            raise SnapshotError(
                f"There are snapshots in {self._storage.where}, but none is usable:\n  "
                + "\n  ".join(reasons)
                + "\nPut back a good copy, or, to start over and lose that progress: "
                + self._storage.how_to_reset
            )

    def _read(self, choice: Selection, contents: list[StorageContents]) -> dict[str, Any] | None:
        """Return the state; None if a copy is unusable, so that all ranks select again.

        A rank with a copy sends the state while it reads. A receiving rank learns of the check's
        result only afterwards.
        """
        state = StateVersion(choice.step, BEGINNING)
        has = (state if rank in choice.ranks else None for rank in range(collectives.world_size()))
        source, targets = Agreement(tuple(has)).part_of(self._rank)
        if self._read_part is not None:
            source, targets = None, []
        if source is None:
            content, why, unavailable = self._read_here(choice, targets)
        else:
            content, why, unavailable = (
                receive_state(source, collectives.device(), self._choose),
                "",
                "",
            )
        gathered = collectives.all_gather_objects((why, unavailable))
        for _, text in gathered:
            if text:
                raise SnapshotError(text)
        reasons = [reason for reason, _ in gathered]
        bad = [each for each in contents if any(reasons[rank] for rank in each.ranks)]
        if self._read_part is not None and any(reasons):
            bad = contents
        if bad:
            self._without |= {(each.ranks[0], choice.digest) for each in bad}
            self._reasons += sorted({reason for reason in reasons if reason})
            return None
        return content

    def _read_here(
        self, choice: Selection, targets: list[int]
    ) -> tuple[dict[str, Any] | None, str, str]:
        """Return the state, the reason why it is unusable, and the reason why it cannot be read."""
        content, why, unavailable = None, "", ""
        name = self._storage.name(choice.step)
        sender = StateSender(targets, collectives.device()) if targets else None
        try:
            if self._read_part is None:
                content = self._storage.read(choice.step, choice.digest, sender, self._choose)
            else:
                content = self._read_part(self._storage.open(choice.step, choice.digest))
            training_state.check(content)
            if sender is not None and not sender.has_begun:
                sender.send_state(content)
        except (UnusableError, ValueError) as error:
            content, why = None, f"{name}: {error}"
            _log.warning("ignoring snapshot %s", why)
        except SnapshotError as error:
            unavailable = str(error)
        except OSError as error:  # the snapshot may be whole, so no rank may exclude it
            unavailable = _cannot_read(name, error)
        if sender is not None:
            sender.end()
        return content, why, unavailable

    def _begin(
        self, on_resume: OnResume, choice: Selection | None, existing_steps: list[int]
    ) -> bool:
        """Fence other writers; return True if another writer has just added a snapshot."""
        again, problem = False, None
        if self._rank == self._storage_group.ranks[0]:
            try:
                step, writer = (choice.step, choice.writer) if choice else (0, None)
                again = on_resume(step, existing_steps, writer)
            except SnapshotError as error:
                problem = error
        return any(collectives.all_gather_results(again, problem))


def _cannot_read(name: str, error: OSError) -> str:
    return f"Cannot read {name}: {error.strerror}"
