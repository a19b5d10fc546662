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
from ddpjob_operator.planner import conditions
from ddpjob_operator.planner.observed import Observed, Phase, Refusal, Rendezvous, Worker
from ddpjob_operator.planner.planner import (
    Action,
    CreateAddress,
    CreateRendezvous,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Expect,
    Plan,
    plan,
)
from ddpjob_protocol.control import Expectation, Report, Round, State
from ddpjob_protocol.membership import Cause, Member, Membership, MembershipId
from support.builders import JOB, NOW, make_round

MAX_ROUNDS = 3
BASE = {"replicas": 3, "maxReplicas": 9, "command": ["torchrun", "train.py"]}


@dataclasses.dataclass
class Service:
    """A rendezvous service that lets everybody in at once."""

    epoch: int
    minimum: int
    ready: bool = False
    expectation: Expectation | None = None
    membership: Membership | None = None
    state: State = State.WAITING
    rounds: tuple[Round, ...] = ()

    def report(self, workers: tuple[str, ...]) -> Report:
        return Report(
            version=1,
            epoch=self.epoch,
            boot=1,
            state=self.state,
            reason=str(self.state),
            workers=workers,
            membership=self.membership,
            rounds=self.rounds,
        )


class World:
    """Job, pods and service; time passes only when told."""

    def __init__(self) -> None:
        self.now: datetime = NOW
        self.spec: dict[str, Any] = dict(BASE)
        self.generation = 1
        self.status = DDPJobStatus()
        self.pods: dict[str, Worker] = {}
        self.stuck: set[str] = set()  # on a node that is cut off: deletion does not end
        self.service: Service | None = None
        self.address = False  # without it nobody reaches the service, and only who has does stay
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
        reachable = service is not None and service.ready and self.address
        return Observed(
            job=self.job(),
            workers=tuple(self.pods.values()),
            rendezvous=Rendezvous(service.epoch, service.ready) if service else None,
            report=service.report(names) if service and reachable else None,
            address=self.address,
        )

    def reconcile(self, writes: int = 1000, status_first: bool = False) -> Plan:
        """One pass of an operator that is killed after so many writes."""
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
        refusals = []
        for action in planned.actions:
            if refusal := self.execute(action):
                refusals.append(refusal)
            yield planned
        if refusals:
            planned = plan(dataclasses.replace(observed, refusals=tuple(refusals)), self.now)
            refused = {refusal.name for refusal in refusals}
            for action in planned.actions:
                if isinstance(action, Expect):
                    assert refused.isdisjoint(action.expectation.workers)
                    self.execute(action)
                    yield planned
        if not status_first:
            self._write(planned.status)
            yield planned

    def _write(self, status: DDPJobStatus) -> None:
        assert status.rendezvous_epoch >= self.status.rendezvous_epoch
        self.status = status

    def execute(self, action: Action) -> Refusal | None:
        """Do it, twice without harm; or refuse, for want of quota."""
        match action:
            case CreateAddress():
                self.address = True
            case CreateRendezvous(name, epoch):
                assert self.service is None, "two services of one job"
                assert epoch == self.status.rendezvous_epoch, "the epoch was not written before"
                if self._full():
                    return Refusal(name, Reason.QUOTA_EXCEEDED, "exceeded quota: pods")
                self.service = Service(epoch, self.job().spec.minimum, membership=self.carried)
            case DeleteRendezvous():
                self.service = None
            case CreateWorker(name, group, index, incarnation):
                assert name not in self.pods, "two workers of one name"
                if self._full():
                    return Refusal(name, Reason.QUOTA_EXCEEDED, "exceeded quota: pods")
                self.pods[name] = Worker(name, group, index, incarnation)
            case DeleteWorker(name):
                if name in self.pods:
                    self.pods[name] = dataclasses.replace(self.pods[name], deleting=True)
            case Expect(expectation):
                assert self.service is not None
                assert self.service.ready
                if self.address:
                    self.service.expectation = expectation
        return None

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
        if service.expectation is None or service.state in (State.COMPLETE, State.FAILED):
            return
        alive = {name for name, pod in self.pods.items() if pod.phase is Phase.RUNNING}
        present = sorted(alive & set(service.expectation.workers))
        old = service.membership
        if not self.address:
            connected = {member.worker for member in old.members} if old else set[str]()
            present = [name for name in present if name in connected]
        if old is not None and [member.worker for member in old.members] == present:
            service.state = State.RUNNING
            return
        if len(present) < service.minimum:
            service.state = State.WAITING
            return
        id_ = MembershipId(service.epoch, 1, old.id.n + 1 if old else 1)
        assert not self.formed or id_ > self.formed[-1], "memberships must only grow"
        self.formed.append(id_)
        members = tuple(Member(name, name, "127.0.0.1", 1) for name in present)
        service.membership = Membership(id_, members, Cause.JOINED, "")
        service.rounds = (*service.rounds, make_round(service.membership))[-MAX_ROUNDS:]
        service.state = State.RUNNING
        self.carried = service.membership

    def finish(self, state: State) -> None:
        """The commands of all members end, if any run."""
        if self.service is None or self.service.state is not State.RUNNING:
            return
        self.service.state = state
        phase = Phase.SUCCEEDED if state is State.COMPLETE else Phase.FAILED
        for name, pod in self.pods.items():
            if pod.phase is Phase.RUNNING:
                self.pods[name] = dataclasses.replace(pod, phase=phase)

    def change(self, **spec: Any) -> None:
        """The user edits the job."""
        self.spec = {**self.spec, **spec}
        self.generation += 1

    def converge(self) -> int:
        """Let operator and world go on undisturbed until nothing changes; the passes it took."""
        self.stuck.clear()
        self.capacity = 20
        self.quota = None
        for passes in range(60):
            before = (self.status, dict(self.pods), self.service and self.service.epoch)
            planned = self.reconcile()
            self.tick()
            self.now += timedelta(seconds=planned.requeue_after or 0)
            after = (self.status, dict(self.pods), self.service and self.service.epoch)
            quiet = all(isinstance(action, Expect) for action in planned.actions)
            if before == after and quiet and not self._unheard(planned):
                return passes
        raise AssertionError("no fixed point after 60 passes")

    def _unheard(self, planned: Plan) -> bool:
        again = plan(self.observe(), self.now)
        return again.actions != planned.actions or again.status != self.status
