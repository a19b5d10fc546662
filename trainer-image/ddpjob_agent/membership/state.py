"""The input of a decision about a membership, and the decision.

May not: decide, read a clock, open anything.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Failure
    from ddpjob_protocol.messages.control import Expectation, Policy
    from ddpjob_protocol.messages.membership import Member, Membership

FAREWELL_SECONDS = 2.0  # for the last messages of a worker that is no longer expected


@dataclasses.dataclass(frozen=True)
class WorkerState:
    """A registered worker as the service sees it. Times are the service's monotonic seconds."""

    member: Member
    registered_at: float
    last_seen: float
    closed_at: float | None = None  # time of its disconnect; None while connected
    host_silent_since: float | None = None  # its host acknowledges nothing; None if it does
    overdue_at: float | None = None  # it does not answer, and no step is done: `silence`
    leaving: bool = False  # reported by its agent
    unexpected_at: float | None = None  # since when it is not expected; None if expected
    done: bool = False  # its command ended with 0 in the current membership
    exit_at: float | None = None  # when the report arrived that its command failed
    failure: Failure | None = None
    port: int | None = None  # reserved for its processes
    reach: int | None = None  # port for the connectivity checks of other workers
    # In snapshot mode and live mode only.
    stops: bool = False  # all its processes can stop after a step that an order names
    promise: int | None = None  # last step that its processes begin without a further order
    # In live mode only.
    ready_at: float | None = None  # since when all its processes can join; None if one cannot
    finished: bool = False  # a process has done all steps
    failed_in: str = ""  # membership in which its processes failed
    failures: int = 0  # consecutive failures of its command
    rests_until: float = 0.0  # end of the backoff of its command

    def lost_at(self, policy: Policy) -> float:
        """Return when this worker counts as lost unless it sends a message before."""
        at, grace = self.last_seen + policy.heartbeat_deadline, policy.reconnect_grace
        if self.host_silent_since is not None:
            at = min(at, self.host_silent_since + policy.host_deadline)
        if self.overdue_at is not None:
            at = min(at, self.overdue_at)
        if self.unexpected_at is not None:
            at, grace = min(at, self.unexpected_at + FAREWELL_SECONDS), 0.0
        return at if self.closed_at is None else min(at, self.closed_at + grace)

    def in_backoff(self, now: float) -> bool:
        """Return whether the backoff of its command still runs."""
        return now < self.rests_until

    def is_being_ended(self, policy: Policy) -> bool:
        """Return whether it is alive although its pod was deleted: then it must leave."""
        since = self.unexpected_at
        return since is not None and self.last_seen >= since + policy.reconnect_grace


@dataclasses.dataclass(frozen=True)
class MembershipState:
    """The whole input of a decision."""

    policy: Policy
    workers: tuple[WorkerState, ...]
    term: int
    boot: int
    expectation: Expectation | None = None
    expected_since: float = 0.0  # when the first expectation arrived
    current: Membership | None = None
    running: bool = False  # the processes of `current` are meant to run
    formed_at: float = 0.0
    failures: int = 0
    in_window: int | None = None  # failures within the policy's window; None: there is none
    failures_in_a_row: int = 0  # after the last one that ended a healthy membership
    root_failure: Failure | None = None  # the failure whose backoff runs
    resume_at: float = 0.0  # end of that backoff
    lost: tuple[str, ...] = ()  # workers whose loss halted `current`
    snapshot_step: int | None = None  # newest reported snapshot; None outside snapshot mode
    repeated_steps: int = 0  # repeated so far because a snapshot was older
    saved_at: float | None = None  # time of the last snapshot in `current`
    kept_at: float | None = None  # time of the last safe replica in `current`
    live: bool = False  # live mode: processes survive changes
    broken: Failure | None = None  # processes of `current` reported lost connections
    broken_at: float = 0.0
    asked_at: float | None = None  # since when the processes are asked for a stop step
    counted_in: str = ""  # membership whose failures have been counted
    # Set once `current` hangs and its stacks are known: the failure, and the workers to start again.
    hang: Failure | None = None
    hung: tuple[str, ...] = ()

    @property
    def spent(self) -> int:
        """Number of failures that count against the budget."""
        return self.failures if self.in_window is None else self.in_window


class Action(enum.Enum):
    """An action of the service."""

    KEEP = "keep"
    HALT = "halt"
    FORM = "form"
    BACKOFF = "backoff"
    ASK_STOP_STEP = "ask"  # the processes report the step after which they can change
    CANCEL_STOP = "unask"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action with the reason that the job's status shows."""

    action: Action
    reason: str
    again_at: float | None = None  # time of the next decision, if no event comes before
    membership: Membership | None = None
    failure: Failure | None = None
    lost: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # workers in backoff until `rest_until`, in live mode
    rest_until: float = 0.0
    counts: bool = False  # the application has one more failure
    ignored: bool = False
    failures_in_a_row: int = 0  # with this one
    awaited: tuple[str, ...] = ()  # decide again when all these workers have sent a message
    awaited_since: float = 0.0  # earlier messages do not count
    after: int | None = None  # for a planned HALT: the last step; the state is saved after it
