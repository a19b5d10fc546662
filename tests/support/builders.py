"""Makes what the core is about, with defaults that a test need not mention."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from ddpjob_operator.api.constants import MAIN_GROUP, worker_name
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus, WorkerFailures
from ddpjob_operator.planner.observed import Phase, Worker
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import MembershipRecord, Report, ServiceState
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
JOB = "digits"


def make_job(replicas: int = 2, status: DDPJobStatus | None = None, **spec: Any) -> DDPJob:
    """A valid job; further fields of the spec by their names in the file."""
    data = {
        "metadata": {"name": JOB, "generation": spec.pop("generation", 1)},
        "spec": {"command": ["torchrun", "train.py"], "replicas": replicas, **spec},
    }
    job = DDPJob.model_validate(data, by_name=False)
    return job.model_copy(update={"status": status or DDPJobStatus()})


def make_status(**fields: Any) -> DDPJobStatus:
    """Status of a job whose first rendezvous service is up; fields by their Python names."""
    defaults = {"rendezvous_term": 1, "observed_rendezvous_term": 1, "start_time": NOW}
    return DDPJobStatus(**{**defaults, **fields})


def make_worker(
    index: int = 0,
    incarnation: int = 1,
    group: str = MAIN_GROUP,
    phase: Phase = Phase.RUNNING,
    **fields: Any,
) -> Worker:
    """A running worker on a node by default."""
    node = None if phase is Phase.PENDING else f"node-{index}"
    name = worker_name(JOB, group, index, incarnation)
    return Worker(name, group, index, incarnation, phase, **{"node": node, **fields})


def make_failures(last: Worker, **fields: Any) -> WorkerFailures:
    """The count of a slot whose last worker this is."""
    defaults = {"count": 1, "reason": "WorkersFail", "at": NOW, "retry_at": NOW}
    slot = {"group": last.group, "index": last.index, "worker": last.name}
    return WorkerFailures.model_validate({**slot, **defaults, **fields}, by_name=True)


def make_membership(*workers: Worker, n: int = 1, term: int = 1, **fields: Any) -> Membership:
    """A membership of these workers, one process each."""
    members = tuple(Member(w.name, f"{w.name}-agent", "127.0.0.1", 1) for w in workers)
    defaults: dict[str, Any] = {"cause": Cause.STARTED, "detail": "the first"}
    return Membership(id=MembershipId(term, 1, n), members=members, **{**defaults, **fields})


def make_report(*workers: Worker, membership: Membership | None = None, **fields: Any) -> Report:
    """A report in which these workers train together."""
    if membership is None and workers:
        membership = make_membership(*workers)
    defaults: dict[str, Any] = {
        "version": 1,
        "term": 1,
        "boot": 1,
        "state": ServiceState.RUNNING if membership else ServiceState.WAITING,
        "reason": "running" if membership else "0 of at least 1 worker is here",
        "workers": tuple(worker.name for worker in workers),
        "membership": membership,
        "memberships": (make_round(membership),) if membership else (),
    }
    return Report(**{**defaults, **fields})


def make_round(membership: Membership) -> MembershipRecord:
    """The record of a membership that has done nothing yet."""
    return MembershipRecord(
        id=str(membership.id),
        cause=membership.cause.value,
        detail=membership.detail,
        workers=tuple(member.worker for member in membership.members),
        world_size=membership.world_size,
        since=NOW.timestamp(),
    )


def make_failure(**fields: Any) -> Failure:
    """The failure of one process."""
    defaults = Failure(at=NOW.timestamp(), summary="rank 1 failed: ValueError: bad", rank=1)
    return dataclasses.replace(defaults, **fields)
