"""The replicas that an agent does not use, and what it reports of them, each once.

May not: decide, read a clock, do I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_agent.file_sync.decisions.admission import RefusedError
    from ddpjob_agent.file_sync.decisions.replica import Replica

MAX_REFUSED = 64  # that are remembered, of each kind
_KNOWN = "If snapshot.files named the file before, name the file again"


class RefusedReplicas:
    """The refused replicas of one agent."""

    def __init__(self) -> None:
        self.digests: dict[str, None] = {}  # of those that workers sent, the oldest first
        self._stored: set[str] = set()  # paths of those in the store
        self._new: list[str] = []

    def add_sent(self, copy: Replica, holder: str, reason: RefusedError) -> None:
        """Record a replica of another worker."""
        if copy.digest in self.digests:
            return
        if len(self.digests) == MAX_REFUSED:
            del self.digests[next(iter(self.digests))]
        self.digests[copy.digest] = None
        self._new.append(
            f"refused {copy} from {holder}: {reason}. The job continues without this copy."
            f" Find out if that is a worker of this job; if not, its key is known: make a new job"
        )

    def add_stored(self, refused: Mapping[str, str]) -> None:
        """Record the replicas of a store, by their paths."""
        for path in set(refused) - self._stored:
            self._stored.add(path)
            self._new.append(
                f"refused the copy in {path}: {refused[path]}. The job continues without this copy."
                f" {_KNOWN}; if not, delete the copy, and let only this job write to the volume"
            )

    def take_new(self) -> list[str]:
        """Return what was refused since the last call, with reason and remedy."""
        taken, self._new = self._new, []
        return taken
