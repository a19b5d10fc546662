"""The refused reports of agents: kept out of the state, and reported once per worker and kind.

A refused report ends neither the service nor the worker's session, and no agent sends it again to
be accepted later. The server logs what `take` returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_protocol.messages.warnings import invalid_report

if TYPE_CHECKING:
    from ddpjob_agent.registry.state.warning_log import WarningLog


class RefusedReports:
    """The refused reports of a job's workers."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()  # worker and kind of message
        self._new: list[str] = []

    def add(self, warnings: WarningLog, worker: str, kind: str, problem: str, wall: float) -> None:
        """Add a refused report; warn of the first of each worker and kind."""
        if (worker, kind) in self._known:
            return
        self._known.add((worker, kind))
        warning = invalid_report(problem)
        self._new.append(f"{worker} {warning.message}")
        warnings.add(worker, warning, wall)

    def take(self) -> list[str]:
        """Return the lines for the log since the last call."""
        lines, self._new = self._new, []
        return lines
