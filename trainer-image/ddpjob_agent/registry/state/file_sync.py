"""The sync of the script's own files: inventories in, instructions out.

Follows the membership; `ddpjob_agent.file_sync.decisions.policy` makes the decisions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.file_sync.decisions.policy import FileSyncPolicy
from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import FileSyncReport

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.decisions.replica import FileInstruction, FileInventory
    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_agent.registry.state.worker_table import WorkerTable
    from ddpjob_protocol.messages.membership import Member

NO_INSTRUCTION = json.dumps(None)


class FileSyncCoordinator:
    """The file sync of one job; idle without `snapshot.files` and in live mode."""

    def __init__(self) -> None:
        self._files = FileSyncPolicy()
        self._kept = FileSyncReport()
        self._last = ("", 0.0)  # membership and seconds of the last safe replica

    def on_inventory(self, view: MembershipState, worker: str, inventory: FileInventory) -> None:
        """Take an agent's inventory."""
        self._enter(view)
        self._files.on_inventory(worker, inventory)

    def update(self, view: MembershipState, workers: WorkerTable, now: float, wall: float) -> bool:
        """Advance to the view's state; return whether a new replica is safe."""
        if not _is_enabled(view) or view.current is None:
            return False
        self._enter(view)
        if not view.running:
            return False
        members = view.current.members
        self._files.advance(members, _leaving(view, workers, now))
        safe = self._files.safe_replica(members)
        if safe is None or (safe.membership, safe.seconds) == self._last:
            return False
        self._last = (safe.membership, safe.seconds)
        self._kept = FileSyncReport(wall, safe.size)
        return True

    def _enter(self, view: MembershipState) -> None:
        if view.current is not None:
            self._files.enter(str(view.current.id) + ("" if view.running else "+"))

    def instructions(
        self, view: MembershipState, workers: WorkerTable, now: float
    ) -> Callable[[str], str]:
        """Return the instruction for the files by worker, as JSON; each is encoded once."""
        if not _is_enabled(view) or view.current is None:
            return lambda _: NO_INSTRUCTION
        current, leaving = view.current, _leaving(view, workers, now)
        if view.running:
            inside = {*current.members, *leaving}
            word_for = self._files.instructions(current.members, leaving)
        else:
            going = {*leaving}
            present = [each.member for each in _present(view, workers, now)]
            staying = [each for each in present if each not in going]
            names = {each.member.worker for each in workers.rows()}
            more = view.expectation is None or not names.issuperset(view.expectation.workers)
            word_for = self._files.final_instructions(staying, leaving, more=more)
        encoded: dict[int, tuple[FileInstruction, str]] = {}

        def instruction_for(worker: str) -> str:
            known = workers.get(worker)
            if known is None or (view.running and known.member not in inside):
                return NO_INSTRUCTION  # the worker joins a later membership
            word = word_for(known.member)
            if id(word) not in encoded:
                encoded[id(word)] = (word, json.dumps(encode(word)))
            return encoded[id(word)][1]

        return instruction_for

    def report(self) -> FileSyncReport | None:
        """Return the report for the operator, if there is one."""
        return None if self._kept == FileSyncReport() else self._kept


def _present(view: MembershipState, workers: WorkerTable, now: float) -> list[WorkerState]:
    return [w for w in workers.rows() if w.closed_at is None and w.lost_at(view.policy) > now]


def _leaving(view: MembershipState, workers: WorkerTable, now: float) -> list[Member]:
    """Return the leaving workers that are still connected: one may hold the only replica."""
    if view.expectation is None:
        return []
    current = view.current if view.running else None
    leaving = [w.member for w in _present(view, workers, now) if leaves(view, w)]
    return [each for each in leaving if current is None or not current.has(each)]


def _is_enabled(view: MembershipState) -> bool:
    return view.policy.files and not view.live
