"""The script's own files, as the registry has them: asked of whom, and in which scope.

Follows the registry's view; what is decided from it is `files`' business.
May not: read a clock, open anything, change the view.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.file_sync.policy import FileSyncPolicy
from ddpjob_agent.file_sync.replica import FileInventory
from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.control import FileSyncReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_agent.membership.state import MembershipState, WorkerState
    from ddpjob_agent.service.worker_table import WorkerTable
    from ddpjob_protocol.membership import Member
    from ddpjob_protocol.messages import Message


class FileSyncCoordinator:
    """Of one job; asks nothing of jobs that keep no files, or whose processes stay."""

    def __init__(self, roster: WorkerTable) -> None:
        self._roster = roster
        self._files = FileSyncPolicy()
        self._kept = FileSyncReport()
        self._last = ("", 0.0)  # membership and seconds of the copy that was safe last

    def on_inventory(self, view: MembershipState, worker: str, message: Mapping[str, Any]) -> None:
        """An agent says what it has; raises KeyError, TypeError, ValueError."""
        self._enter(view)
        facts = {name: value for name, value in message.items() if name != "type"}
        self._files.on_inventory(worker, decode(FileInventory, facts))

    def update(self, view: MembershipState, now: float, wall: float) -> bool:
        """Take note of what the view has come to; returns whether there is a new safe copy."""
        if not _is_enabled(view) or view.current is None:
            return False
        self._enter(view)
        if not view.running:
            return False
        members = view.current.members
        self._files.advance(members, self._leaving(view, now))
        safe = self._files.safe_replica(members)
        if safe is None or (safe.membership, safe.seconds) == self._last:
            return False
        self._last = (safe.membership, safe.seconds)
        self._kept = FileSyncReport(wall, safe.size)
        return True

    def _enter(self, view: MembershipState) -> None:
        if view.current is not None:
            self._files.enter(str(view.current.id) + ("" if view.running else "+"))

    def instruction_for(self, view: MembershipState, worker: str, now: float) -> Message | None:
        """What this worker is to do with the files, if anything."""
        known = self._roster.get(worker)
        if not _is_enabled(view) or view.current is None or known is None:
            return None
        leaving, members = self._leaving(view, now), view.current.members
        if not view.running:
            staying = [w.member for w in self._present(view, now) if w.member not in leaving]
            names = {each.member.worker for each in self._roster.workers()}
            more = view.expectation is None or not names.issuperset(view.expectation.workers)
            word = self._files.final_instruction(known.member, staying, leaving, more=more)
        elif known.member in (*members, *leaving):
            word = self._files.instruction_for(known.member, members, leaving)
        else:
            return None  # it joins later
        message: Message = encode(word)
        return message

    def _present(self, view: MembershipState, now: float) -> list[WorkerState]:
        everybody = self._roster.workers()
        return [w for w in everybody if w.closed_at is None and w.lost_at(view.policy) > now]

    def _leaving(self, view: MembershipState, now: float) -> list[Member]:
        """Who goes, may have what nobody else has, and can still be asked."""
        if view.expectation is None:
            return []
        members = view.current.members if view.current and view.running else ()
        present = self._present(view, now)
        return [w.member for w in present if leaves(view, w) and w.member not in members]

    def report(self) -> FileSyncReport | None:
        """What the operator is told, if there is anything."""
        found = dataclasses.replace(self._kept, problem=self._files.problem)
        return None if found == FileSyncReport() else found


def _is_enabled(view: MembershipState) -> bool:
    return view.policy.files and not view.live
