"""A world in memory that executes plans: pods, a scheduler, and a rendezvous service.

It refuses what a real one would refuse, and remembers nothing of the operator's but the status.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.planner.actions import (
    Action,
    CreateRendezvous,
    CreateService,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
)
from ddpjob_operator.planner.observed import Observed, Phase, Rejection, Rendezvous, Worker
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_operator.planner.status import conditions
from ddpjob_protocol.messages.control import Expectation, MembershipRecord, Report, ServiceState
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.builders import JOB, NOW, make_round

MAX_ROUNDS = 3
BASE = {"replicas": 3, "maxReplicas": 9, "command": ["torchrun", "train.py"]}


@dataclasses.dataclass
class Service:
    """A rendezvous service that admits every worker at once."""

    term: int
    minimum: int
    ready: bool = False
    expectation: Expectation | None = None
    membership: Membership | None = None
    state: ServiceState = ServiceState.WAITING
    rounds: tuple[MembershipRecord, ...] = ()

    def report(self, workers: tuple[str, ...]) -> Report:
        return Report(
            version=1,
            term=self.term,
            boot=1,
            state=self.state,
            reason=str(self.state),
            workers=workers,
            membership=self.membership,
            memberships=self.rounds,
        )


class World:
    """Job, pods and service; time passes only by a call."""

    def __init__(self) -> None:
        self.now: datetime = NOW
        self.spec: dict[str, Any] = dict(BASE)
        self.generation = 1
        self.status = DDPJobStatus()
        self.pods: dict[str, Worker] = {}
        self.stuck: set[str] = set()  # on a node that is cut off: deletion does not end
        self.service: Service | None = None
        self.has_service_object = False  # without it no new worker reaches the service
        self.capacity = 20
        self.quota: int | None = None  # more pods than that are not let be created
        self.carried: Membership | None = None  # what the agents hold, over a service's death
        self.formed: list[MembershipId] = []
        self.writes = 0

    # --- the operator ---

    def job(self) -> DDPJob:
        data = {"metadata": {"name": JOB, "generation": self.generation}, "spec": self.spec}
        status = DDPJobStatus.model_validate(self.status.to_json())  # as from the API server
        return DDPJob.model_validate(data).model_copy(update={"status": status})

    def observe(self) -> Observed:
        service = self.service
        names = tuple(sorted(name for name, pod in self.pods.items() if pod.phase is Phase.RUNNING))
        reachable = service is not None and service.ready and self.has_service_object
        return Observed(
            job=self.job(),
            workers=tuple(self.pods.values()),
            rendezvous=Rendezvous(service.term, service.ready) if service else None,
            report=service.report(names) if service and reachable else None,
            service=self.has_service_object,
        )

    def reconcile(self, writes: int = 1000, status_first: bool = False) -> Plan:
        """One pass of an operator that is killed after `writes` writes."""
        over = conditions.finished(self.status.conditions)
        observed = self.observe()
        planned = plan(observed, self.now)
        for plan_now in itertools.islice(self._passing(observed, planned, status_first), writes):
            self.writes += 1
            planned = plan_now
        if over:
            assert conditions.finished(self.status.conditions)
        return planned

    def _passing(self, observed: Observed, planned: Plan, status_first: bool) -> Iterator[Plan]:
        """The writes of one pass, one by one; what was refused is planned for once more."""
        if status_first:
            self._write(planned.status)
            yield planned
        rejections = []
        for action in planned.actions:
            if refusal := self.execute(action):
                rejections.append(refusal)
            yield planned
        if rejections:
            planned = plan(dataclasses.replace(observed, rejections=tuple(rejections)), self.now)
        if planned.expectation is not None:
            refused = {refusal.name for refusal in rejections}
            assert refused.isdisjoint(planned.expectation.workers)
            self.expect(planned.expectation)
            yield planned
        if not status_first:
            self._write(planned.status)
            yield planned

    def _write(self, status: DDPJobStatus) -> None:
        assert status.rendezvous_term >= self.status.rendezvous_term
        self.status = status

    def execute(self, action: Action) -> Rejection | None:
        """Do it, twice without harm; or refuse, for want of quota."""
        match action:
            case CreateService():
                self.has_service_object = True
            case CreateRendezvous(name, term):
                assert self.service is None, "two services of one job"
                assert term == self.status.rendezvous_term, "the term was not written before"
                if self._full():
                    return Rejection(name, Reason.QUOTA_EXCEEDED, "exceeded quota: pods")
                self.service = Service(term, self.job().spec.minimum, membership=self.carried)
            case DeleteRendezvous():
                self.service = None
            case CreateWorker(name, group, index, incarnation):
                assert name not in self.pods, "two workers of one name"
                if self._full():
                    return Rejection(name, Reason.QUOTA_EXCEEDED, "exceeded quota: pods")
                self.pods[name] = Worker(name, group, index, incarnation)
            case DeleteWorker(name):
                if name in self.pods:
                    self.pods[name] = dataclasses.replace(self.pods[name], deleting=True)
        return None

    def expect(self, expectation: Expectation) -> None:
        """Send the expectation to the service, if it is reached."""
        assert self.service is not None
        assert self.service.ready
        if self.has_service_object:
            self.service.expectation = expectation

    def _full(self) -> bool:
        used = sum(not pod.terminal for pod in self.pods.values()) + (self.service is not None)
        return self.quota is not None and used >= self.quota

    # --- everything else ---

    def tick(self) -> None:
        """Kubelets, the scheduler and the service do what is theirs."""
        self.now += timedelta(seconds=1)
        gone = [n for n, pod in self.pods.items() if pod.deleting and n not in self.stuck]
        for name in gone:
            del self.pods[name]
        self._schedule()
        if self.service is not None:
            self.service.ready = True
            self._form(self.service)
        if not any(pod.phase is Phase.RUNNING for pod in self.pods.values()):
            self.carried = None

    def _schedule(self) -> None:
        free = self.capacity - sum(pod.phase is Phase.RUNNING for pod in self.pods.values())
        for name, pod in self.pods.items():
            if pod.phase is Phase.PENDING and not pod.deleting:
                fits, free = free > 0, free - 1
                phase = Phase.RUNNING if fits else Phase.PENDING
                why = None if fits else "no node has a free GPU"
                self.pods[name] = dataclasses.replace(
                    pod, phase=phase, node="node" if fits else None, unschedulable=why
                )

    def _form(self, service: Service) -> None:
        if service.expectation is None or service.state in (
            ServiceState.COMPLETE,
            ServiceState.FAILED,
        ):
            return
        alive = {name for name, pod in self.pods.items() if pod.phase is Phase.RUNNING}
        present = sorted(alive & set(service.expectation.workers))
        old = service.membership
        if not self.has_service_object:
            connected = {member.worker for member in old.members} if old else set[str]()
            present = [name for name in present if name in connected]
        if old is not None and [member.worker for member in old.members] == present:
            service.state = ServiceState.RUNNING
            return
        if len(present) < service.minimum:
            service.state = ServiceState.WAITING
            return
        id_ = MembershipId(service.term, 1, old.id.round + 1 if old else 1)
        assert not self.formed or id_ > self.formed[-1], "memberships must only grow"
        self.formed.append(id_)
        members = tuple(Member(name, name, "127.0.0.1", 1) for name in present)
        service.membership = Membership(id_, members, Cause.JOINED, "")
        service.rounds = (*service.rounds, make_round(service.membership))[-MAX_ROUNDS:]
        service.state = ServiceState.RUNNING
        self.carried = service.membership

    def finish(self, state: ServiceState) -> None:
        """The commands of all members end, if any run."""
        if self.service is None or self.service.state is not ServiceState.RUNNING:
            return
        self.service.state = state
        phase = Phase.SUCCEEDED if state is ServiceState.COMPLETE else Phase.FAILED
        for name, pod in self.pods.items():
            if pod.phase is Phase.RUNNING:
                self.pods[name] = dataclasses.replace(pod, phase=phase)

    def change(self, **spec: Any) -> None:
        """The user edits the job."""
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def converge(self) -> int:
        """Run operator and world undisturbed until nothing changes; return the number of passes."""
        self.stuck.clear()
        self.capacity = 20
        self.quota = None
        for passes in range(60):
            before = (self.status, dict(self.pods), self.service and self.service.term)
            planned = self.reconcile()
            self.tick()
            self.now += timedelta(seconds=planned.requeue_after or 0)
            after = (self.status, dict(self.pods), self.service and self.service.term)
            if before == after and not planned.actions and not self._unheard(planned):
                return passes
        raise AssertionError("no fixed point after 60 passes")

    def _unheard(self, planned: Plan) -> bool:
        again = plan(self.observe(), self.now)
        changed = (again.actions, again.expectation) != (planned.actions, planned.expectation)
        return changed or again.status != self.status
