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

from typing import TYPE_CHECKING

from ddpjob_agent.file_sync.replica import NOTHING, FileInstruction, FileInventory, Replica, newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_protocol.membership import Member

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
        found = (copy for copy in self._replicas(members) if self._is_safe(copy, members))
        return newest(copy for copy in found if copy.membership == self.scope and copy.seconds > 0)

    def advance(self, members: Sequence[Member], leaving: Sequence[Member]) -> None:
        """Permit the start, if all members have installed the newest replica."""
        inventories = [self._inventories.get(member.worker) for member in members]
        reported = all(member.worker in self._inventories for member in leaving)
        copy = newest(self._replicas((*members, *leaving)))
        digest = copy.digest if copy else NOTHING
        if reported and all(each is not None and each.installed == digest for each in inventories):
            self._go = True

    def instruction_for(
        self, member: Member, members: Sequence[Member], leaving: Sequence[Member]
    ) -> FileInstruction:
        """Return the instruction for a worker; `members` form the membership, `leaving` left it."""
        everybody = (*members, *leaving)
        if self._go:
            return self._instruction_while_running(member, members)
        if member not in members:
            return FileInstruction(self.scope, wait=True)
        if any(each.worker not in self._inventories for each in everybody):
            return FileInstruction(self.scope)
        copy = newest(self._replicas(everybody))
        holders = self._holders(copy.digest, everybody) if copy else ()
        return FileInstruction(self.scope, copy, holders, put=True)

    def _instruction_while_running(
        self, member: Member, members: Sequence[Member]
    ) -> FileInstruction:
        copy = newest(self._replicas(members))
        if (
            copy
            and not self._is_safe(copy, members)
            and self._second_holder(copy, members) == member
        ):
            holders = self._holders(copy.digest, members)
            return FileInstruction(self.scope, copy, holders, go=True, keep=True)
        return FileInstruction(self.scope, go=True)

    def final_instruction(
        self, member: Member, staying: Sequence[Member], leaving: Sequence[Member], *, more: bool
    ) -> FileInstruction:
        """Return the instruction while no membership runs; `more`: more workers are expected."""
        everybody = (*staying, *leaving)
        goes = member not in staying
        if any(each.worker not in self._inventories for each in everybody):
            return FileInstruction(self.scope, wait=goes and (more or bool(staying)))
        copy = newest(self._replicas(everybody))
        if copy is None:
            return FileInstruction(self.scope)
        having = [each for each in everybody if self._has(each, copy.digest)]
        wait = goes and member in having and not set(having) & set(staying)
        if goes or member in having:
            return FileInstruction(self.scope, wait=wait and (more or bool(staying)))
        return FileInstruction(self.scope, copy, self._holders(copy.digest, everybody), keep=True)

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
