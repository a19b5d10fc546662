"""What one pass saw of a job: frozen values, parsed by whoever looked.

May not: decide anything, or remember an earlier pass.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import StrEnum

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_protocol.control import Report


class Phase(StrEnum):
    """How far a worker is; the words are a pod's."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclasses.dataclass(frozen=True)
class Worker:
    """One worker, that is one pod or what stands for it."""

    name: str
    group: str
    index: int
    incarnation: int  # counts the workers that had this index
    phase: Phase = Phase.PENDING
    node: str | None = None
    unschedulable: str | None = None  # the scheduler's words
    unschedulable_since: datetime | None = None
    deleting: bool = False
    reason: str = ""  # the kubelet's word for that, such as ImagePullBackOff or OOMKilled
    message: str = ""  # how it ended, or what keeps it from running

    @property
    def terminal(self) -> bool:
        """Whether it has ended, well or badly."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def live(self) -> bool:
        """Whether it runs, or will unless something happens."""
        return not self.terminal and not self.deleting

    @property
    def scheduled(self) -> bool:
        """Whether it has a node."""
        return self.live and (self.node is not None or self.phase is Phase.RUNNING)


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """The job's rendezvous service."""

    term: int
    ready: bool = False  # it can be told whom to expect
    reason: str = ""  # what keeps it from running, as for a worker
    message: str = ""


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A child of the job that the API server did not let be created in this pass."""

    name: str
    reason: Reason
    message: str  # the API server's words


@dataclasses.dataclass(frozen=True)
class Observed:
    """Everything that a plan follows from, beside the time."""

    job: DDPJob
    workers: tuple[Worker, ...] = ()
    rendezvous: Rendezvous | None = None
    report: Report | None = None  # of that rendezvous
    terminated_terms: tuple[
        int, ...
    ] = ()  # terms of rendezvous pods that have ended and are still there
    service: bool = True  # whether workers can find the service: its name leads to it
    single_node_claim: str = ""  # claim of the snapshots, if only one node can use it
    rejections: tuple[Rejection, ...] = ()  # of this pass, when it plans for a second time
    one_file_system: bool = False  # every worker sees the files of all
