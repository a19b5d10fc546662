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
from ddpjob_trainer.transfer.agreement import BEGINNING, Agreement, StateVersion
from ddpjob_trainer.transfer.broadcast import StateSender, receive_state

if TYPE_CHECKING:
    from ddpjob_trainer.collectives import StorageGroup
    from ddpjob_trainer.snapshots.model.fencing import Owner
    from ddpjob_trainer.snapshots.storage.base import SnapshotStorage

_log = logging.getLogger("ddpjob")

GoOn = Callable[[int, list[int]], bool]


class SnapshotLoader:
    """One load by all ranks together."""

    def __init__(
        self, place: SnapshotStorage, rank: int, seers: StorageGroup, owner: Owner
    ) -> None:
        self._place = place
        self._rank = rank
        self._seers = seers
        self._owner = owner
        self._without: set[tuple[int, str]] = set()
        self._reasons: list[str] = []

    def load_agreed(self, go_on: GoOn) -> tuple[int, dict[str, Any]] | None:
        """Return the step and the state, equal on all ranks; None if there is no snapshot.

        The first rank of each storage calls `go_on(step, existing_steps)`. This call fences all
        other writers. It returns True if the storage has new steps beside `existing_steps`. Raise
        SnapshotError on all ranks.
        """
        while True:
            holdings, there = self._report_resumed()
            choice = select_snapshot(holdings, self_owner=self._owner, excluded=self._without)
            if choice is None:
                self._explain(holdings)
                found = None
            else:
                content = self._read(choice, holdings)
                if content is None:
                    continue
                found = choice.step, content
            if not self._begin(go_on, choice.step if choice else 0, there):
                return found

    def _report_resumed(self) -> tuple[list[StorageContents], list[int]]:
        mine: StorageContents | str | None = None
        there: list[int] = []
        if self._rank == self._seers.ranks[0]:
            try:
                there = self._place.all_steps()
                mine = self._place.list_candidates(self._seers.readers, self._owner)
            except OSError as error:
                mine = self._cannot_read(self._place.where, error)
        told = collectives.all_gather_objects(mine)
        for each in told:
            if isinstance(each, str):
                raise SnapshotError(each)
        return [each for each in told if each is not None], there

    def _explain(self, holdings: list[StorageContents]) -> None:
        """Raise SnapshotError if there are snapshots, but none is usable."""
        reasons = [*self._reasons, *(why for holding in holdings for why in holding.unusable)]
        if reasons:
            raise SnapshotError(
                f"There are snapshots in {self._place.where}, but none is usable:\n  "
                + "\n  ".join(reasons)
                + "\nPut back a good copy, or, to start afresh and lose that progress: "
                + self._place.how_to_reset
            )

    def _read(self, choice: Selection, holdings: list[StorageContents]) -> dict[str, Any] | None:
        """Return the state; None if a copy is unusable, so that all ranks select again.

        A rank with a copy sends the state while it reads. A receiving rank learns of the check's
        result only afterwards.
        """
        state = StateVersion(choice.step, BEGINNING)
        has = (state if rank in choice.ranks else None for rank in range(collectives.world_size()))
        source, targets = Agreement(tuple(has)).part_of(self._rank)
        if source is None:
            content, why, away = self._read_here(choice, targets)
        else:
            content, why, away = receive_state(source, collectives.device()), "", ""
        told = collectives.all_gather_objects((why, away))
        for _, text in told:
            if text:
                raise SnapshotError(text)
        reasons = [reason for reason, _ in told]
        bad = [h for h in holdings if any(reasons[rank] for rank in h.ranks)]
        if bad:
            self._without |= {(holding.ranks[0], choice.digest) for holding in bad}
            self._reasons += sorted({reason for reason in reasons if reason})
            return None
        return content

    def _read_here(
        self, choice: Selection, targets: list[int]
    ) -> tuple[dict[str, Any] | None, str, str]:
        """Return the state, the reason why it is unusable, and the reason why it cannot be read."""
        content, why, away = None, "", ""
        name = self._place.name(choice.step)
        giver = StateSender(targets, collectives.device()) if targets else None
        try:
            content = self._place.read(choice.step, choice.digest, giver)
            if giver is not None and not giver.has_begun:
                giver.send_state(content)
        except UnusableError as error:
            why = f"{name}: {error}"
            _log.warning("ignoring snapshot %s", why)
        except OSError as error:  # the snapshot may be whole, so no rank may exclude it
            away = self._cannot_read(name, error)
        if giver is not None:
            giver.end()
        return content, why, away

    def _cannot_read(self, name: str, error: OSError) -> str:
        return f"Cannot read {name}: {error.strerror}"

    def _begin(self, go_on: GoOn, step: int, existing_steps: list[int]) -> bool:
        """Fence other writers; return True if another writer has just added a snapshot."""
        again, problem = False, None
        if self._rank == self._seers.ranks[0]:
            try:
                again = go_on(step, existing_steps)
            except SnapshotError as error:
                problem = error
        told = collectives.all_gather_objects((again, problem))
        for _, each in told:
            if each is not None:
                raise each
        return any(again for again, _ in told)
