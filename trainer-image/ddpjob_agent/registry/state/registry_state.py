"""The state of one job's rendezvous service, as data.

    registration   connected and expected workers
    messages       messages of registered workers
    decisions      the membership policy, applied until nothing changes
    orders         the order for each worker
    report         the report for the operator

`registration` and `messages` record, `decisions` acts, `orders` and `report` only read. Orders are
level-triggered: an order depends on the state alone, so the next comparison repairs a lost message.

All times are passed in as `now`, in the service's monotonic seconds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ddpjob_agent.c10d.torchrun_ranks import TorchrunRanks
from ddpjob_agent.membership.state import MembershipState
from ddpjob_agent.membership.stop_askers import StopAskers
from ddpjob_agent.registry.state.file_sync import FileSyncCoordinator
from ddpjob_agent.registry.state.hang_restart import HangRestart
from ddpjob_agent.registry.state.history import MembershipHistory
from ddpjob_agent.registry.state.refused_reports import RefusedReports
from ddpjob_agent.registry.state.signs_of_life import SignsOfLife
from ddpjob_agent.registry.state.stall_detector import StallDetector
from ddpjob_agent.registry.state.warning_log import WarningLog
from ddpjob_agent.registry.state.worker_table import WorkerTable
from ddpjob_protocol.failures.failure_rules import count_since
from ddpjob_protocol.messages.control import Policy, ServiceState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_agent.membership.last_step import LastStep
    from ddpjob_protocol.messages.agent import Failure
    from ddpjob_protocol.messages.control import ProcessFailure
    from ddpjob_protocol.messages.membership import Membership


@dataclasses.dataclass
class RegistryState:
    """The state of one job's rendezvous."""

    wall_offset: float  # seconds since the epoch at monotonic zero
    view: MembershipState  # the input of the membership policy
    workers: WorkerTable = dataclasses.field(default_factory=WorkerTable)
    relearned: bool = False  # the membership was formed before this service started
    last_step: LastStep | None = None  # of the membership that ended, or is about to end
    files: FileSyncCoordinator = dataclasses.field(default_factory=FileSyncCoordinator)
    awaited: set[str] = dataclasses.field(default_factory=set)  # a decision waits for all these
    awaited_since: float = 0.0  # earlier messages of them do not count
    signs: SignsOfLife = dataclasses.field(default_factory=SignsOfLife)
    # For the report only.
    phase: ServiceState = ServiceState.WAITING
    reason: str = ""
    failure: Failure | None = None
    failure_times: tuple[int, ...] = ()  # of the last failures; seconds since the epoch
    process_failures: tuple[ProcessFailure, ...] = ()
    silent: frozenset[str] = frozenset()  # lost workers whose connections are open
    history: MembershipHistory = dataclasses.field(default_factory=MembershipHistory)
    stalls: StallDetector = dataclasses.field(default_factory=StallDetector)
    hang: HangRestart = dataclasses.field(default_factory=HangRestart)
    askers: StopAskers = dataclasses.field(default_factory=StopAskers)
    warnings: WarningLog = dataclasses.field(default_factory=WarningLog)
    refused_reports: RefusedReports = dataclasses.field(default_factory=RefusedReports)
    ranks: TorchrunRanks = dataclasses.field(default_factory=TorchrunRanks)  # of the store

    @property
    def current(self) -> Membership | None:
        """The newest membership, running or not."""
        return self.view.current

    @property
    def is_over(self) -> bool:
        """True if the job is complete or failed."""
        return self.phase in (ServiceState.COMPLETE, ServiceState.FAILED)

    def wall(self, now: float) -> float:
        """Return `now` in seconds since the epoch."""
        return now + self.wall_offset

    def failures_in_window(self, now: float) -> int | None:
        """Return the number of failures in the policy's window; None if it has none."""
        window = self.view.policy.window
        return None if window is None else count_since(self.failure_times, self.wall(now) - window)

    def knows(self, worker: str) -> bool:
        """Return whether this worker is in the table; otherwise it must register again."""
        return self.workers.get(worker) is not None

    def is_member(self, worker: str) -> bool:
        """Return whether the worker's present incarnation is in the current membership."""
        known, current = self.workers.get(worker), self.view.current
        return bool(known and current and current.has(known.member))

    def is_current(self, worker: str, message: Mapping[str, Any]) -> bool:
        """Return whether a message about a membership is from a member while it runs."""
        return self.is_in(worker, message["membership"])

    def is_in(self, worker: str, membership: str) -> bool:
        """Return whether this worker is in this membership, and the membership runs."""
        view = self.view
        return bool(
            view.current
            and view.running
            and membership == str(view.current.id)
            and self.is_member(worker)
        )

    def refuse(self, worker: str, kind: str, problem: str, now: float) -> None:
        """Record that a report of this worker was refused, with its odd value."""
        self.refused_reports.add(self.warnings, worker, kind, problem, self.wall(now))

    def update(self, **changes: Any) -> None:
        """Change fields of the policy's input."""
        self.view = dataclasses.replace(self.view, **changes)


def initial_state(term: int, boot: int, wall_offset: float) -> RegistryState:
    """Return the state of a service that knows no worker."""
    view = MembershipState(policy=Policy(), workers=(), term=term, boot=boot)
    return RegistryState(wall_offset, view)
