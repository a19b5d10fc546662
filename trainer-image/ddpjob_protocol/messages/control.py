"""Messages between the rendezvous service and the operator: GET /report and PUT /expected.

Each side reads the messages of an older or a newer peer. Standard library only; this module opens
no file and no socket.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Mapping

from ddpjob_protocol.failures.failure_rules import FailureRule
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.membership import Membership
from ddpjob_protocol.messages.warnings import JobWarning


class ServiceState(str, enum.Enum):
    """State of the rendezvous service, as the operator reads it."""

    WAITING = "Waiting"  # no membership runs: too few workers, or backing off
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True)
class MembershipRecord:
    """The course of one membership, for status and timeline. Times in seconds since the epoch."""

    id: str
    cause: str
    detail: str
    workers: tuple[str, ...]
    world_size: int
    since: float
    snapshot_step: int | None = None  # newest snapshot when the membership was formed
    resumed_step: int | None = None  # step that the processes resumed from
    first_step: int | None = None
    first_step_at: float | None = None  # when the service received the report
    last_step: int | None = None
    last_step_at: float | None = None
    repeated_steps: int = 0  # steps repeated because the snapshot was older


@dataclasses.dataclass(frozen=True)
class WorkerRanks:
    """The ranks of one worker: `first`, and as many as it has processes."""

    worker: str
    first: int
    processes: int


@dataclasses.dataclass(frozen=True)
class ProcessFailure:
    """A process that failed and that its agent started again; of a kind that costs the budget."""

    worker: str
    at: int  # seconds since the epoch, on the clock of the service


@dataclasses.dataclass(frozen=True)
class RankGroup:
    """Processes that are at the same point while no step is done."""

    ranks: tuple[int, ...]
    workers: tuple[str, ...]  # of these ranks
    step: int | None  # their last step; None: not reported
    where: str = ""  # current line of the script; empty: not known
    silent: bool = False  # their heartbeats have stopped
    behind: bool = False  # other ranks are further, or alive


@dataclasses.dataclass(frozen=True)
class Stall:
    """A hang, as first detected: no step for much longer than a usual step, or no end."""

    since: float  # report of the last step; seconds since the epoch
    step: int  # the last step
    usual_step_seconds: float | None  # None: not known
    groups: tuple[RankGroup, ...] = ()  # lagging ranks come first
    # At the end of the training: the workers whose command has ended with 0, and the others.
    ended: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class FileSyncReport:
    """State of the replicas of files that an unchanged script saves to (`snapshot.files`)."""

    synced_at: float | None = None  # last safe replica; seconds since the epoch, service's clock
    size: int = 0  # bytes


@dataclasses.dataclass(frozen=True)
class Report:
    """State of the job, as the service reports it to the operator: GET /report."""

    version: int  # grows with every change; a long poll sends its last version
    term: int
    boot: int
    state: ServiceState
    reason: str  # reason why the service waits, or the job ended; one sentence
    workers: tuple[str, ...]  # registered now
    membership: Membership | None = None
    failures: int = 0
    failure_times: tuple[int, ...] = ()  # of the last ones; seconds since the epoch
    losses: int = 0
    step: int | None = None
    step_at: float | None = None  # when the report of the step arrived; seconds since the epoch
    steps_per_second: float | None = None  # over the last minute; None: not known
    total_steps: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    snapshot_step: int | None = None
    failure: Failure | None = None  # last failure that the service acted on
    # The last ones, oldest first. A service that starts again has none.
    process_failures: tuple[ProcessFailure, ...] = ()
    memberships: tuple[MembershipRecord, ...] = ()  # oldest first, bounded
    live: bool = False  # live mode: processes survive a change of the membership
    stall: Stall | None = None  # the processes hang
    warnings: tuple[JobWarning, ...] = ()  # ongoing ones, then incidents; bounded
    repeated_steps: int = 0  # sum over all memberships
    snapshots_skipped: int = 0  # between the two newest snapshots
    files: FileSyncReport | None = None
    ranks: tuple[WorkerRanks, ...] = ()  # as torchrun assigned them, in order; empty: not known

    def worker_ranks(self, *, torchrun: bool) -> tuple[WorkerRanks, ...]:
        """Return the workers of the membership in the order of ranks; nothing if it is not known.

        torchrun assigns ranks itself. In live mode and with other launchers, ranks have the order
        of the membership.
        """
        if self.membership is None or (torchrun and not self.live):
            return self.ranks
        members = self.membership.members
        firsts = itertools.accumulate((member.processes for member in members), initial=0)
        return tuple(
            WorkerRanks(member.worker, first, member.processes)
            for member, first in zip(members, firsts)
        )

    def without_progress(self) -> Report:
        """Return the report without the values that change with every step."""
        memberships = (
            dataclasses.replace(r, last_step=None, last_step_at=None, snapshot_step=None)
            for r in self.memberships
        )
        files = self.files and FileSyncReport(None if self.files.synced_at is None else 0)
        return dataclasses.replace(
            self,
            version=0,
            files=files,
            step=None if self.step is None else 0,
            step_at=None,
            steps_per_second=None,
            total_steps=None,
            metrics={},
            snapshot_step=None,
            snapshots_skipped=0,
            memberships=tuple(memberships),
        )


@dataclasses.dataclass(frozen=True)
class Policy:
    """Settings of the job that the service applies; times in seconds."""

    minimum: int = 1  # workers
    minimums: tuple[tuple[str, int], ...] = ()  # workers by prefix of their names, up to the index
    startup_wait: float = 300
    settle: float = 3
    join_policy: str = "Auto"  # Auto | Immediate | Never
    min_between_joins: float = 300
    max_join_wait: float = 900
    max_failures: int = 3
    max_losses: int | None = None  # None: unlimited
    window: float | None = None  # max_failures within this time; None: over the whole job
    rules: tuple[FailureRule, ...] = ()
    backoff: float = 5
    reconnect_grace: float = 0.5  # time in which a closed connection may reconnect
    heartbeat_deadline: float = 10  # silence after which a worker is lost
    live_deadline: float = 3  # heartbeat deadline in live mode
    # A host is silent if its kernel acknowledges nothing.
    host_deadline: float = 3
    live_host_deadline: float = 0.6
    # Where its agent does not answer, and no step is done: the least time to answer.
    process_deadline: float = 2
    live_process_deadline: float = 0.8
    stall_steps: float = 20  # hang: no step for the usual time of this number of steps
    stall_seconds: float = 60  # and at least for this time
    on_hang: str = "Report"  # or Restart
    files: bool = False  # the agents keep replicas of the script's files


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Workers that the operator expects: PUT /expected. Until the first, no membership starts."""

    workers: tuple[str, ...]  # pods that are, or may still be, bound to a node; no other pod runs
    draining: tuple[str, ...] = ()  # excluded from the next membership, which forms now
    policy: Policy = Policy()
    failures: int = 0  # lower bound: the operator's status outlives every agent
    failure_times: tuple[int, ...] = ()  # at least these; seconds since the epoch

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """All workers that are named."""
        return frozenset((*self.workers, *self.draining))
