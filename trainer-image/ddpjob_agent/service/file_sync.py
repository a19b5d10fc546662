"""The script's own files, as the registry has them: asked of whom, and in which scope.

Follows the registry's view; what is decided from it is `files`' business.
May not: read a clock, open anything, change the view.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.file_sync.policy import Files
from ddpjob_agent.file_sync.replica import Stock
from ddpjob_agent.membership.forming import leaves
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.control import KeptFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_agent.membership.state import View, Worker
    from ddpjob_agent.service.worker_table import Roster
    from ddpjob_protocol.membership import Member
    from ddpjob_protocol.messages import Message


class Safekeeping:
    """Of one job; asks nothing of jobs that keep no files, or whose processes stay."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._files = Files()
        self._kept = KeptFiles()
        self._last = ("", 0.0)  # membership and seconds of the copy that was safe last

    def hear(self, view: View, worker: str, message: Mapping[str, Any]) -> None:
        """An agent says what it has; raises KeyError, TypeError, ValueError."""
        self._enter(view)
        facts = {name: value for name, value in message.items() if name != "type"}
        self._files.hear(worker, decode(Stock, facts))

    def follow(self, view: View, now: float, wall: float) -> bool:
        """Take note of what the view has come to; returns whether there is a new safe copy."""
        if not _keeps(view) or view.current is None:
            return False
        self._enter(view)
        if not view.running:
            return False
        members = view.current.members
        self._files.advance(members, self._leaving(view, now))
        safe = self._files.safe(members)
        if safe is None or (safe.membership, safe.seconds) == self._last:
            return False
        self._last = (safe.membership, safe.seconds)
        self._kept = KeptFiles(wall, safe.size)
        return True

    def _enter(self, view: View) -> None:
        if view.current is not None:
            self._files.enter(str(view.current.id) + ("" if view.running else "+"))

    def word(self, view: View, worker: str, now: float) -> Message | None:
        """What this worker is to do with the files, if anything."""
        known = self._roster.get(worker)
        if not _keeps(view) or view.current is None or known is None:
            return None
        leaving, members = self._leaving(view, now), view.current.members
        if not view.running:
            staying = [w.member for w in self._present(view, now) if w.member not in leaving]
            names = {each.member.worker for each in self._roster.all()}
            more = view.expectation is None or not names.issuperset(view.expectation.workers)
            word = self._files.word_at_end(known.member, staying, leaving, more=more)
        elif known.member in (*members, *leaving):
            word = self._files.word(known.member, members, leaving)
        else:
            return None  # it joins later
        message: Message = encode(word)
        return message

    def _present(self, view: View, now: float) -> list[Worker]:
        everybody = self._roster.all()
        return [w for w in everybody if w.closed_at is None and w.lost_at(view.policy) > now]

    def _leaving(self, view: View, now: float) -> list[Member]:
        """Who goes, may have what nobody else has, and can still be asked."""
        if view.expectation is None:
            return []
        members = view.current.members if view.current and view.running else ()
        present = self._present(view, now)
        return [w.member for w in present if leaves(view, w) and w.member not in members]

    def report(self) -> KeptFiles | None:
        """What the operator is told, if there is anything."""
        found = dataclasses.replace(self._kept, trouble=self._files.trouble)
        return None if found == KeptFiles() else found


def _keeps(view: View) -> bool:
    return view.policy.files and not view.live
