"""What the decision about a membership depends on, and what it can be.

May not: decide, read a clock, open anything.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpjob_protocol.control import Expectation, Policy
    from ddpjob_protocol.membership import Member, Membership
    from ddpjob_protocol.messages import Failure

FAREWELL_SECONDS = 2.0  # in which a worker that the operator no longer names is heard, or lost


@dataclasses.dataclass(frozen=True)
class WorkerState:
    """One registered worker as the service sees it. Times are the service's monotonic seconds."""

    member: Member
    registered_at: float
    last_heard: float
    closed_at: float | None = None  # when its connection closed; None while it is open
    leaving: bool = False  # it says so itself
    unexpected_at: float | None = None  # since when the operator has not named it
    done: bool = False  # its command ended with 0 in the current membership
    exit_at: float | None = None  # when the service heard that its command failed
    failure: Failure | None = None
    port: int | None = None  # that it keeps free for its processes
    reach: int | None = None  # where others see whether they can reach it
    # At L1 and L2 only.
    stops: bool = False  # all its processes can be told after which step to stop
    promise: int | None = None  # the last step that its processes begin before they hear more
    # At L2 only.
    ready_at: float | None = None  # since when all its processes wait for a membership, or are in
    finished: bool = False  # a process has done all steps, and changes no more
    failed_in: str = ""  # the membership in which its processes were when they failed
    failures: int = 0  # of its command, in a row
    rests_until: float = 0.0  # its command is not started again before

    def lost_at(self, policy: Policy) -> float:
        """When this worker counts as lost unless it is heard from before."""
        at, grace = self.last_heard + policy.heartbeat_deadline, policy.reconnect_grace
        if self.unexpected_at is not None:
            at, grace = min(at, self.unexpected_at + FAREWELL_SECONDS), 0.0
        return at if self.closed_at is None else min(at, self.closed_at + grace)

    def in_backoff(self, now: float) -> bool:
        """Whether its command may not be started now."""
        return now < self.rests_until

    def is_being_ended(self, policy: Policy) -> bool:
        """Whether it lives on without a pod: then somebody deleted that, and it has to go."""
        since = self.unexpected_at
        return since is not None and self.last_heard >= since + policy.reconnect_grace


@dataclasses.dataclass(frozen=True)
class MembershipState:
    """Everything that the decision depends on."""

    policy: Policy
    workers: tuple[WorkerState, ...]
    term: int
    boot: int
    expectation: Expectation | None = None
    expected_since: float = 0.0  # when the first expectation came
    current: Membership | None = None
    running: bool = False  # the processes of `current` are meant to run
    formed_at: float = 0.0
    failures: int = 0
    blamed: Failure | None = None  # a failure whose back-off is running
    resume_at: float = 0.0  # end of that back-off
    lost: tuple[str, ...] = ()  # workers whose loss halted `current`
    snapshot_step: int | None = None  # newest snapshot that the job has reported: level L1
    repeated_steps: int = 0  # done again so far, since snapshots were older
    saved_at: float | None = None  # last one in the current membership
    kept_at: float | None = None  # last copy of the script's files in the current membership
    live: bool = False  # the processes stay over changes: level L2
    broken: Failure | None = None  # processes of `current` say that they lost their connections
    broken_at: float = 0.0
    asked_at: float | None = None  # since when they are asked for a step to change at
    counted_in: str = ""  # the membership whose failures have been counted


class Action(enum.Enum):
    """What the service is to do."""

    KEEP = "keep"
    HALT = "halt"
    FORM = "form"
    BACKOFF = "backoff"
    ASK_STOP_STEP = "ask"  # the processes for the step after which they can change
    CANCEL_STOP = "unask"
    COMPLETE = "complete"
    FAIL = "fail"


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action with the reason that people read in the job's status."""

    action: Action
    reason: str
    again_at: float | None = None  # decide again then, whatever happens before
    membership: Membership | None = None
    failure: Failure | None = None
    lost: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # workers that rest until `rest_until`, at L2
    rest_until: float = 0.0
    counts: bool = False  # `failed` is one more failure of the application
    after: int | None = None  # HALT after this step, and with the state saved: it was planned
