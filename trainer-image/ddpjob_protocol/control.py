"""What the rendezvous service and the operator tell each other: GET /report and PUT /expected.

Each side reads what an older or a newer one says. Standard library only; it opens no file and no
socket.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from ddpjob_protocol.membership import Membership
from ddpjob_protocol.messages import Failure

TOKEN_HEADER = "X-DDPJob-Token"  # not Authorization: the API server's proxy removes that one


class ServiceState(str, enum.Enum):
    """What the rendezvous service is doing, as the operator reads it."""

    WAITING = "Waiting"  # no membership runs: too few workers, or backing off
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True)
class MembershipRecord:
    """What one membership did, for status, timeline and tests. Times in seconds since the epoch."""

    id: str
    cause: str
    detail: str
    workers: tuple[str, ...]
    world_size: int
    since: float
    snapshot_step: int | None = None  # newest snapshot when the round was formed
    resumed_step: int | None = None  # where the processes say that they went on from
    first_step: int | None = None
    first_step_at: float | None = None  # when the service heard of it
    last_step: int | None = None
    repeated_steps: int = 0  # done before, and again since the snapshot was older


@dataclasses.dataclass(frozen=True)
class RankGroup:
    """Processes that are at the same point while no step is done."""

    ranks: tuple[int, ...]
    workers: tuple[str, ...]  # theirs
    step: int | None  # the last one that they did; None: they tell of none
    where: str = ""  # the line of the script that they are at, if that is known
    silent: bool = False  # they have stopped to say that they are alive
    behind: bool = False  # the others are further, or alive


@dataclasses.dataclass(frozen=True)
class Stall:
    """The processes hang: no step for much longer than one takes. As found when it was noticed."""

    since: float  # when the last step was heard of; seconds since the epoch
    step: int  # that one
    usual_step_seconds: float | None  # seconds that a step takes; None: not known
    groups: tuple[RankGroup, ...] = ()  # who lags comes first


@dataclasses.dataclass(frozen=True)
class Overdue:
    """A worker's processes were ended before they had done the last step that was wanted of them."""

    worker: str
    seconds: float  # that they had for it


@dataclasses.dataclass(frozen=True)
class FileSyncReport:
    """What the agents keep of the files that an unchanged script saves to (`snapshot.files`)."""

    synced_at: float | None = (
        None  # when a copy was last safe, on the service's clock; since the epoch
    )
    size: int = 0  # bytes
    problem: str = ""  # what keeps a worker from keeping copies


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that the service tells the operator: GET /report."""

    version: int  # grows with every change; a long poll names the one it has
    term: int
    boot: int
    state: ServiceState
    reason: str  # what it waits for, or why it ended; one sentence
    workers: tuple[str, ...]  # registered now
    membership: Membership | None = None
    failures: int = 0
    losses: int = 0
    step: int | None = None
    total_steps: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    snapshot_step: int | None = None
    failure: Failure | None = None  # the last one that was blamed
    memberships: tuple[MembershipRecord, ...] = ()  # oldest first, bounded
    live: bool = False  # the processes stay over changes: level L2
    stall: Stall | None = None  # the processes hang
    overdue: tuple[Overdue, ...] = ()  # oldest first, bounded
    stuck: tuple[str, ...] = ()  # sentences, one for each time a process was; oldest first, bounded
    unreachable: tuple[str, ...] = ()  # sentences, one for each worker that cannot reach others
    repeated_steps: int = 0  # done again, since snapshots were older; of all memberships
    snapshots_skipped: int = 0  # left out between the newest one and the one before
    snapshot_problem: str = ""  # what makes saving them worse than it could be, and what to do
    files: FileSyncReport | None = None

    def without_progress(self) -> Report:
        """The same but for what changes with every step; that there was one, stays."""
        memberships = (
            dataclasses.replace(r, last_step=None, snapshot_step=None) for r in self.memberships
        )
        files = self.files and FileSyncReport(
            None if self.files.synced_at is None else 0, 0, self.files.problem
        )
        return dataclasses.replace(
            self,
            version=0,
            files=files,
            step=None if self.step is None else 0,
            total_steps=None,
            metrics={},
            snapshot_step=None,
            snapshots_skipped=0,
            memberships=tuple(memberships),
        )


@dataclasses.dataclass(frozen=True)
class Policy:
    """The job's numbers that the service decides by; times in seconds."""

    minimum: int = 1  # workers
    minimums: tuple[tuple[str, int], ...] = ()  # of those whose names begin so, up to the index
    startup_wait: float = 300
    settle: float = 3
    join_policy: str = "Auto"  # Auto | Immediate | Never
    min_between_joins: float = 300
    max_join_wait: float = 900
    max_failures: int = 3
    max_losses: int | None = None  # None: unlimited
    backoff: float = 5
    reconnect_grace: float = 0.5  # a closed connection may come back within
    heartbeat_deadline: float = 10  # a silent worker is lost after
    live_deadline: float = 3  # the same at L2
    stall_steps: float = 20  # hanging: no step for as long as so many usually take
    stall_seconds: float = 60  # and at least for so long
    files: bool = False  # the agents keep the files that the script saves to


@dataclasses.dataclass(frozen=True)
class Expectation:
    """What the operator tells the service: PUT /expected. Until the first one nothing starts."""

    workers: tuple[str, ...]  # pods that are bound to a node or may still be; no other one lives
    draining: tuple[str, ...] = ()  # to be left out at the next membership, which is due now
    policy: Policy = Policy()
    failures: int = 0  # at least so many: the operator's status outlives every agent
