"""Chooses the replica that a membership starts from, and the workers that store a newer one.

Theory of operation. A decision belongs to a *scope*: a membership, or its end. In each scope every
agent sends its inventory again, as soon as none of its processes runs.

    all members and leaving workers have reported  ──► name the newest replica and its holders
    all members have installed the newest replica  ──► go: all processes start from equal bytes
    a worker stores a newer replica while training ──► a second worker fetches it: it is safe
    the membership ended, and none follows         ──► staying workers fetch the newest replica

May not: read a clock, do I/O, retain state of an earlier scope.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.decisions.replica import (
    NOTHING,
    FileInstruction,
    FileInventory,
    Replica,
    newest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddpjob_protocol.messages.membership import Member

ENOUGH = 2  # holders of a safe replica; one of them may be lost


class FileSyncPolicy:
    """The file sync decisions of one scope, from the inventories of its agents."""

    def __init__(self) -> None:
        self.scope = ""
        self._inventories: dict[str, FileInventory] = {}
        self._go = False

    def enter(self, scope: str) -> None:
        """Start a scope; clear the inventories of the previous one."""
        if scope != self.scope:
            self.scope = scope
            self._inventories.clear()
            self._go = False

    def on_inventory(self, worker: str, inventory: FileInventory) -> None:
        """Record the inventory of a worker; ignore an inventory of another scope."""
        if inventory.scope == self.scope:
            self._inventories[worker] = inventory
            self._go = self._go or inventory.begun

    def safe_replica(self, members: Sequence[Member]) -> Replica | None:
        """Return the newest replica of this membership that survives the loss of one worker."""
        copies = {copy: None for copy in self._replicas(members) if copy.membership == self.scope}
        holders = self._count_holders(members)
        found = (copy for copy in copies if holders[copy.digest] >= min(ENOUGH, len(members)))
        return newest(copy for copy in found if copy.seconds > 0)

    def advance(self, members: Sequence[Member], leaving: Sequence[Member]) -> None:
        """Permit the start, if all members have installed the newest replica."""
        inventories = [self._inventories.get(member.worker) for member in members]
        reported = all(member.worker in self._inventories for member in leaving)
        copy = newest(self._replicas((*members, *leaving)))
        digest = copy.digest if copy else NOTHING
        if reported and all(each is not None and each.installed == digest for each in inventories):
            self._go = True

    def instructions(
        self, members: Sequence[Member], leaving: Sequence[Member]
    ) -> Callable[[Member], FileInstruction]:
        """Return the instruction by worker; `members` form the membership, `leaving` left it."""
        everybody = (*members, *leaving)
        if self._go:
            return self._instructions_while_running(members)
        word = FileInstruction(self.scope)
        if all(each.worker in self._inventories for each in everybody):
            copy = newest(self._replicas(everybody))
            holders = self._holders(copy.digest, everybody) if copy else ()
            word = FileInstruction(self.scope, copy, holders, put=True)
        inside, wait = {*members}, FileInstruction(self.scope, wait=True)
        return lambda member: word if member in inside else wait

    def _instructions_while_running(
        self, members: Sequence[Member]
    ) -> Callable[[Member], FileInstruction]:
        go = FileInstruction(self.scope, go=True)
        copy = newest(self._replicas(members))
        if copy is None or self._is_safe(copy, members):
            return lambda _: go
        second, holders = self._second_holder(copy, members), self._holders(copy.digest, members)
        keep = FileInstruction(self.scope, copy, holders, go=True, keep=True)
        return lambda member: keep if member == second else go

    def final_instructions(
        self, staying: Sequence[Member], leaving: Sequence[Member], *, more: bool
    ) -> Callable[[Member], FileInstruction]:
        """Return the instruction by worker while no membership runs.

        `more`: more workers are expected.
        """
        everybody, stay = (*staying, *leaving), {*staying}
        nothing = FileInstruction(self.scope)
        wait = FileInstruction(self.scope, wait=more or bool(staying))
        if any(each.worker not in self._inventories for each in everybody):
            return lambda member: nothing if member in stay else wait
        copy = newest(self._replicas(everybody))
        if copy is None:
            return lambda _: nothing
        having = {each for each in everybody if self._has(each, copy.digest)}
        keep = FileInstruction(self.scope, copy, self._holders(copy.digest, everybody), keep=True)
        serve = nothing if having & stay else wait  # until a staying worker has it

        def instruction(member: Member) -> FileInstruction:
            if member in stay:
                return nothing if member in having else keep
            return serve if member in having else nothing

        return instruction

    def _count_holders(self, members: Sequence[Member]) -> collections.Counter[str]:
        inventories = (self._inventories.get(member.worker) for member in members)
        digests = ({copy.digest for copy in each.copies} for each in inventories if each)
        return collections.Counter(digest for found in digests for digest in found)

    def _replicas(self, members: Sequence[Member]) -> list[Replica]:
        inventories = (self._inventories.get(member.worker) for member in members)
        copies = [copy for each in inventories if each is not None for copy in each.copies]
        refused = {digest for each in self._inventories.values() for digest in each.refused}
        return [copy for copy in copies if copy.digest not in refused]

    def _holders(self, digest: str, members: Sequence[Member]) -> tuple[tuple[str, int], ...]:
        return tuple(
            (member.address, self._inventories[member.worker].port)
            for member in members
            if self._has(member, digest)
        )

    def _is_safe(self, copy: Replica, members: Sequence[Member]) -> bool:
        return len(self._holders(copy.digest, members)) >= min(ENOUGH, len(members))

    def _second_holder(self, copy: Replica, members: Sequence[Member]) -> Member:
        """Return the member after the first holder: the member that fetches the replica."""
        first = next(i for i, each in enumerate(members) if self._has(each, copy.digest))
        return members[(first + 1) % len(members)]

    def _has(self, member: Member, digest: str) -> bool:
        inventory = self._inventories.get(member.worker)
        return inventory is not None and inventory.has(digest)
