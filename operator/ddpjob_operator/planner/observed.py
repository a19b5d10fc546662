"""The observation of a job in one pass: frozen values, parsed by the observer.

May not: decide anything, or remember an earlier pass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob, pinned_fields
from ddpjob_protocol.messages.control import Report


class Phase(StrEnum):
    """The phase of a worker, in the terms of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker: a pod, or the simulated pod of the local back end."""

    name: str
    group: str
    index: int
    incarnation: int  # counts the workers of this index, from 1
    phase: Phase = Phase.PENDING
    node: str | None = None
    unschedulable: str | None = None  # message of the scheduler
    unschedulable_since: datetime | None = None
    deleting: bool = False
    reason: str = ""  # reason of the kubelet, such as ImagePullBackOff or OOMKilled
    message: str = ""  # explanation of the end, or of the problem that prevents a start
    revision: str = ""  # of the fields that its pod was made from; empty: not known
    sidecars_left: bool = False  # its agent has ended, other containers of its pod have not
    # Scheduling gates of its pod.
    gates: tuple[str, ...] = ()
    exit_code: int | None = None  # of the agent; None: not known
    disrupted: bool = False  # preempted, drained, or ended for the sake of its node
    placed_at: datetime | None = None  # when the scheduler gave it a node
    sandbox_ready: bool | None = None  # its volumes and its network are; None: not known
    # Start of its container.
    running_since: datetime | None = None
    key: str = ""  # fingerprint of the key that its own keys were derived from
    kept_off: tuple[str, ...] = ()  # nodes that its own affinity excludes

    @property
    def terminal(self) -> bool:
        """True if the worker has succeeded or failed."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def live(self) -> bool:
        """True if the worker has neither ended nor begun its deletion."""
        return not self.terminal and not self.deleting

    @property
    def scheduled(self) -> bool:
        """True if the worker is live and has a node."""
        return self.live and (self.node is not None or self.phase is Phase.RUNNING)


@dataclasses.dataclass(frozen=True)
class Rendezvous:
    """The job's rendezvous service."""

    term: int
    ready: bool = False  # the service accepts an expectation
    reason: str = ""  # reason of the kubelet, as for a worker
    message: str = ""
    revision: str = ""
    key: str = ""
    address: str = ""  # of its pod
    node: str = ""
    running: bool = False  # its container runs, as far as the API server knows
    not_ready_since: datetime | None = None
    unschedulable_since: datetime | None = None
    restarts: int = 0  # of its container
    created: datetime | None = None
    superseded: bool = False  # the agents obey a service of a higher term or boot


@dataclasses.dataclass(frozen=True)
class Silence:
    """A rendezvous service that does not answer the operator."""

    seconds: float  # since its last answer, or since the operator first asked
    error: str  # of the last request
    answered: bool  # the operator has had an answer before


@dataclasses.dataclass(frozen=True)
class Rejection:
    """An action of this pass that the API server did not execute."""

    name: str  # of the pod or Service
    reason: Reason
    message: str  # message of the API server


@dataclasses.dataclass(frozen=True)
class Observed:
    """The complete input of a plan, except the time."""

    job: DDPJob
    workers: tuple[Worker, ...] = ()
    rendezvous: Rendezvous | None = None
    report: Report | None = None  # report of that rendezvous service
    # Terms of rendezvous pods that have ended or are older than it, but still exist.
    terminated_terms: tuple[int, ...] = ()
    service: bool = True  # the job's Service exists
    single_node_claim: str = ""  # snapshot claim that only one node can use
    rejections: tuple[Rejection, ...] = ()  # rejections of this pass, for its second plan
    one_file_system: bool = False  # all workers share one file system
    invalid_report: str = ""
    spec_problems: str = ""  # why this version would refuse the spec of a job that has trained
    agent_image: str = ""  # that the operator gives to jobs that start now; empty: jobs have none
    silence: Silence | None = None  # of that rendezvous service
    # Seconds in which the kubelet of its node has not renewed its Lease. None: not known.
    node_unrenewed: float | None = None
    # The same of the nodes of workers that the status names as silent, as far as it is known.
    unrenewed_nodes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    network_policy: bool = True  # the job's NetworkPolicy exists, or none is wanted
    policy_problem: str = ""  # why it cannot be created
    key: str = ""  # fingerprint of the job's key

    def is_outdated(self, child: Worker | Rendezvous) -> bool:
        """Return whether a pod must be replaced, because its fields or its keys do not hold any more.

        Fields change only before the first membership. No agent obeys a service that is superseded.
        """
        if isinstance(child, Rendezvous) and child.superseded:
            return True
        if child.key != self.key:
            return True
        trained = self.job.status.membership is not None
        return not trained and child.revision not in ("", self._revision)

    @functools.cached_property
    def _revision(self) -> str:
        return pinned_fields.revision(self.job.spec)
