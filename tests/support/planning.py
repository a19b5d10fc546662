"""Plans for a job of two workers, and what is looked for in them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus, MembershipStatus
from ddpjob_operator.planner.actions import CreateWorker
from ddpjob_operator.planner.observed import Observed, Phase, Rejection, Rendezvous, Silence, Worker
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_operator.planner.status.conditions import find
from ddpjob_protocol.messages.control import Expectation, Report
from support.builders import NOW, make_job, make_status, make_worker

UP = Rendezvous(term=1, ready=True)
W0, W1, W2, W3 = (make_worker(index) for index in range(4))
PENDING = Phase.PENDING
FAILED = Phase.FAILED
DOES_NOT_HOLD = ("False", "", "")


def decide(
    job: DDPJob | None = None,
    workers: tuple[Worker, ...] = (),
    rendezvous: Rendezvous | None = UP,
    report: Report | None = None,
    now: datetime = NOW,
    *,
    terminated_terms: tuple[int, ...] = (),
    service: bool = True,
    claim: str = "",
    rejections: tuple[Rejection, ...] = (),
    invalid_report: str = "",
    silence: Silence | None = None,
    **status: Any,
) -> Plan:
    """The plan for a job with this status; by default its service is up."""
    job = job or make_job()
    if job.status == DDPJobStatus():
        job = job.model_copy(update={"status": make_status(**status)})
    observed = Observed(
        job, workers, rendezvous, report, terminated_terms, service, claim, rejections,
        invalid_report=invalid_report, silence=silence,
    )  # fmt: skip
    return plan(observed, now)


def told(status: DDPJobStatus, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; an absent one does not hold."""
    condition = find(status.conditions, type_)
    return (condition.status, condition.reason, condition.message) if condition else DOES_NOT_HOLD


def events_of(planned: Plan) -> list[tuple[str, str, bool]]:
    """Reason and message of each event, and whether it is a warning."""
    return [(each.reason, each.message, each.warning) for each in planned.events]


def create(index: int, incarnation: int = 1, group: str = "worker") -> CreateWorker:
    """The action that creates this worker."""
    name = make_worker(index, incarnation, group).name
    return CreateWorker(name, group, index, incarnation)


def expect(*workers: Worker | CreateWorker, draining: tuple[Worker, ...] = ()) -> Expectation:
    """Return an expectation of these workers."""
    names = tuple(worker.name for worker in workers)
    gone = tuple(worker.name for worker in draining)
    return Expectation(names, gone, make_job().policy())


def membership_of(*workers: Worker, id_: str = "1.1.1") -> MembershipStatus:
    """Return the status of a membership of these workers."""
    return MembershipStatus(
        id=id_,
        workers=tuple(worker.name for worker in workers),
        world_size=len(workers),
        since=NOW,
        cause="started",
    )
