"""The sync of the script's own files: inventories in, instructions out.

Follows the membership; `ddpjob_agent.file_sync.policy` makes the decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.policy import FileSyncPolicy
from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import encode
from ddpjob_protocol.control import FileSyncReport

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.replica import FileInventory
    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_agent.registry.worker_table import WorkerTable
    from ddpjob_protocol.membership import Member
    from ddpjob_protocol.messages import Message


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

    def instruction_for(
        self, view: MembershipState, workers: WorkerTable, worker: str, now: float
    ) -> Message | None:
        """Return this worker's instruction for the files, if there is one."""
        known = workers.get(worker)
        if not _is_enabled(view) or view.current is None or known is None:
            return None
        member, members = known.member, view.current.members
        leaving = _leaving(view, workers, now)
        if not view.running:
            present = _present(view, workers, now)
            staying = [each.member for each in present if each.member not in leaving]
            names = {each.member.worker for each in workers.rows()}
            more = view.expectation is None or not names.issuperset(view.expectation.workers)
            word = self._files.final_instruction(member, staying, leaving, more=more)
        elif member in (*members, *leaving):
            word = self._files.instruction_for(member, members, leaving)
        else:
            return None  # the worker joins a later membership
        message: Message = encode(word)
        return message

    def report(self) -> FileSyncReport | None:
        """Return the report for the operator, if there is one."""
        return None if self._kept == FileSyncReport() else self._kept


def _present(view: MembershipState, workers: WorkerTable, now: float) -> list[WorkerState]:
    return [w for w in workers.rows() if w.closed_at is None and w.lost_at(view.policy) > now]


def _leaving(view: MembershipState, workers: WorkerTable, now: float) -> list[Member]:
    """Return the leaving workers that are still connected: one may hold the only replica."""
    if view.expectation is None:
        return []
    members = view.current.members if view.current and view.running else ()
    present = _present(view, workers, now)
    return [w.member for w in present if leaves(view, w) and w.member not in members]


def _is_enabled(view: MembershipState) -> bool:
    return view.policy.files and not view.live
