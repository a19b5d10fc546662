"""Warnings: problems that impair a job but do not end it.

For a new warning, add a reason and a function that builds it here, and call the function where the
problem is observed. The service, the operator and the status treat all warnings alike.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

from ddpjob_protocol.codec import encode
from ddpjob_protocol.text import shorten, some

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NAMES = 5  # workers in a message; the others are counted
MAX_PROBLEM = 300  # characters of a refused report's problem
MAX_STACKS = 4000  # characters of the stacks of one worker
MAX_INCIDENTS = 6  # the last ones in a report and in the status


class WarningReason(str, enum.Enum):
    """The reason of a warning and of its event."""

    GRACE_PERIOD_TOO_SHORT = "GracePeriodTooShort"
    PROCESS_STUCK = "ProcessStuck"
    UNREACHABLE = "Unreachable"
    SNAPSHOT_NOT_SHARED = "SnapshotNotShared"
    SNAPSHOT_DEGRADED = "SnapshotDegraded"
    DUE_NOT_CALLED = "DueNotCalled"
    FILES_NOT_KEPT = "FilesNotKept"
    FILES_REFUSED = "FilesRefused"
    SIZE_FIXED = "SizeFixed"
    NOT_DISTRIBUTED = "NotDistributed"
    MODEL_NOT_KEPT = "ModelNotKept"
    STORE_FULL = "StoreFull"
    INVALID_REPORT = "InvalidReport"
    NOT_ISOLATED = "NotIsolated"
    INVALID_SPEC = "InvalidSpec"
    START_DELAYED = "StartDelayed"
    RENDEZVOUS_FAILS = "RendezvousFails"
    WORKER_SILENT = "WorkerSilent"
    NOT_CONNECTED = "NotConnected"
    WORKER_NOT_STARTED = "WorkerNotStarted"
    START_SLOW = "StartSlow"
    HANG_STACKS = "HangStacks"
    NODES_AVOIDED = "NodesAvoided"


@dataclasses.dataclass(frozen=True)
class AgentWarning:
    """A problem of one worker, or the end of that problem."""

    reason: str  # text: an older peer accepts a newer reason
    message: str  # problem and remedy, without the worker's name; empty: the problem has ended
    ongoing: bool = True  # False: an incident, which has no end
    membership: str = ""  # membership with which the problem ends; empty: it may outlast one

    def to_message(self) -> dict[str, Any]:
        """Return the message to the rendezvous service."""
        return {"type": "warning", **encode(self)}


@dataclasses.dataclass(frozen=True)
class JobWarning:
    """A problem of a job, for its status."""

    reason: str
    message: str  # problem and remedy
    worker: str = ""  # empty: not a problem of one worker
    since: float = 0.0  # seconds since the epoch
    ongoing: bool = True  # False: an incident, which has no end
    count: int = 1  # workers with this problem


def grace_period_too_short(seconds: float) -> AgentWarning:
    """Return the warning that a worker ended before its last step was done and saved."""
    text = (
        f"was killed before it saved its last step, which took longer than {seconds:.0f} s. Only"
        " the steps since the last snapshot are lost. If steps or saves take that long, raise"
        " template.spec.terminationGracePeriodSeconds"
    )
    return AgentWarning(WarningReason.GRACE_PERIOD_TOO_SHORT.value, text, ongoing=False)


def process_stuck(membership: str, step: int | None, line: str, seconds: float) -> AgentWarning:
    """Return the warning that a process hung and was killed; it left its state at `step`, if any.

    Its main thread was at `line` of the script for `seconds`.
    """
    fate = (
        "its state is lost"
        if step is None
        else f"its replacement resumes from its state at step {step}"
    )
    text = (
        f"a process hung in a broken step of membership {membership}, at {line}, and was killed"
        f" after {seconds:g} s (elastic.stuckSeconds); {fate}"
    )
    return AgentWarning(WarningReason.PROCESS_STUCK.value, text, ongoing=False)


def unreachable(membership: str, others: Sequence[str]) -> AgentWarning:
    """Return the warning that a worker cannot open connections to other members."""
    text = (
        f"cannot reach {some(others, MAX_NAMES)}; their processes cannot connect to each other."
        " Check network policies, firewalls between nodes and network.interface"
    )
    return AgentWarning(WarningReason.UNREACHABLE.value, text, membership=membership)


def store_full(membership: str, problem: str) -> AgentWarning:
    """Return the warning that a worker's write was refused, until the membership ends."""
    text = f"a request of its processes was refused, and their connection closed: {problem}"
    return AgentWarning(WarningReason.STORE_FULL.value, text, membership=membership)


def not_distributed(membership: str, processes: int) -> AgentWarning:
    """Return the warning that a command uses no rendezvous, or without processes its end."""
    text = (
        "its command does not use torchrun's rendezvous, so each worker may train by itself and"
        f" not in a group of {processes} processes; use [torchrun, train.py], or launcher: python"
        " if the script forms the group itself"
    )
    reason = WarningReason.NOT_DISTRIBUTED.value
    return AgentWarning(reason, text if processes else "", membership=membership)


def snapshot_degraded(problem: str) -> AgentWarning:
    """Return the warning that saving is impaired, with the remedy in `problem`, or its end."""
    return AgentWarning(WarningReason.SNAPSHOT_DEGRADED.value, problem)


def due_not_called(membership: str, ranks: Sequence[int]) -> AgentWarning:
    """Return the warning that these ranks never call `Snapshots.due`, or without ranks its end."""
    names = some([*map(str, ranks)], MAX_NAMES)
    subject = f"rank {names} never calls" if len(ranks) == 1 else f"ranks {names} never call"
    text = (
        f"{subject} snapshots.due(step), and other ranks do. So a planned change of the workers loses"
        " the steps since the last snapshot. Call due and save on every rank, without `if rank == 0`"
    )
    reason = WarningReason.DUE_NOT_CALLED.value
    return AgentWarning(reason, text if ranks else "", membership=membership)


def files_not_kept(problem: str) -> AgentWarning:
    """Return the warning that a worker cannot keep replicas of the script's files, or its end."""
    remedy = "; the job continues with the existing copies. Free space on that volume"
    return AgentWarning(WarningReason.FILES_NOT_KEPT.value, problem and problem + remedy)


def files_refused(refusal: str) -> AgentWarning:
    """Return the warning that a worker does not use a replica; `refusal` has reason and remedy."""
    return AgentWarning(WarningReason.FILES_REFUSED.value, refusal, ongoing=False)


def hang_stacks(membership: str, stacks: str) -> AgentWarning:
    """Return the warning that a worker hung and starts again, with its shortened stacks."""
    text = (
        f"hung in membership {membership} and is started again (failurePolicy.onHang); the log of the"
        f" worker has all stacks. {stacks or 'It sent none'}"
    )
    return AgentWarning(WarningReason.HANG_STACKS.value, text, ongoing=False)


def start_delayed(problem: str) -> AgentWarning:
    """Return the warning that a start failed for a moment and is tried again."""
    return AgentWarning(WarningReason.START_DELAYED.value, problem, ongoing=False)


def invalid_report(problem: str) -> AgentWarning:
    """Return the warning that a report of a worker's processes or of its agent was refused."""
    text = (
        f"sent a report that is refused: {shorten(problem, MAX_PROBLEM)}. The job continues without"
        " it. Correct the script that sends it, or use images of one version"
    )
    return AgentWarning(WarningReason.INVALID_REPORT.value, text, ongoing=False)


def invalid_service_report(problem: str) -> str:
    """Return the message that the operator cannot use the report of a job's service."""
    return (
        f"the report of the rendezvous service is refused: {shorten(problem, MAX_PROBLEM)}. The"
        " status keeps the last facts. Use an operator and images of one version"
    )


def not_isolated(problem: str) -> str:
    """Return the message that a job has no NetworkPolicy."""
    return (
        "any pod may connect to the pods of the job, because its NetworkPolicy cannot be created:"
        f" {problem}. Correct that, or switch these policies off (networkPolicy.jobs in the chart)"
    )


def invalid_spec(problems: str) -> str:
    """Return the message that the operator would not accept the spec of a running job."""
    return (
        f"this version of the operator refuses the spec: {shorten(problems, MAX_PROBLEM)}. The job"
        " runs to its end without the refused fields. Correct them before it is suspended or run"
        " again"
    )


def nodes_avoided(nodes: str, failures: str) -> str:
    """Return the message that a worker has no node because bad nodes are avoided."""
    return (
        f"no node takes a worker, and new pods avoid {nodes}, because of {failures} of the job on each"
        " (failurePolicy.avoidNodes). Repair these nodes, add others, or raise avoidNodes"
    )


def rendezvous_fails(error: str) -> AgentWarning:
    """Return the warning that the service cannot evaluate its state, or without an error its end."""
    text = (
        f"the rendezvous service cannot evaluate the job's state: {error}. The processes continue,"
        " but changes of the workers wait. Read the log of the rendezvous pod and report the error;"
        " delete the pod to start the service again"
    )
    return AgentWarning(WarningReason.RENDEZVOUS_FAILS.value, text if error else "")
