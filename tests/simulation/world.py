"""A world in memory that executes plans: pods, a scheduler, and a rendezvous service.

It refuses what a real one would refuse, and remembers nothing of the operator's but the status.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from builders import JOB, NOW, make_round
from ddpjob_agent.contract import (
    Cause,
    Expectation,
    Member,
    Membership,
    MembershipId,
    Report,
    Round,
    State,
)
from ddpjob_operator import conditions
from ddpjob_operator.api import DDPJob
from ddpjob_operator.observed import Observed, Phase, Rendezvous, Worker
from ddpjob_operator.plan import (
    Action,
    CreateRendezvous,
    CreateWorker,
    DeleteRendezvous,
    DeleteWorker,
    Expect,
    Plan,
    plan,
)
from ddpjob_operator.status import DDPJobStatus

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
        self.capacity = 20
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
        return Observed(
            job=self.job(),
            workers=tuple(self.pods.values()),
            rendezvous=Rendezvous(service.epoch, service.ready) if service else None,
            report=service.report(names) if service and service.ready else None,
        )

    def reconcile(self, writes: int = 1000, status_first: bool = False) -> Plan:
        """One pass of an operator that is killed after so many writes."""
        before = conditions.finished(self.status.conditions)
        planned = plan(self.observe(), self.now)
        steps: list[Action | DDPJobStatus] = [*planned.actions]
        steps.insert(0 if status_first else len(steps), planned.status)
        for step in steps[:writes]:
            self.writes += 1
            if isinstance(step, DDPJobStatus):
                assert step.rendezvous_epoch >= self.status.rendezvous_epoch
                self.status = step
            else:
                self.execute(step)
        if before:
            assert conditions.finished(self.status.conditions)
        return planned

    def execute(self, action: Action) -> None:
        match action:
            case CreateRendezvous(epoch=epoch):
                assert self.service is None, "two services of one job"
                assert epoch == self.status.rendezvous_epoch, "the epoch was not written before"
                self.service = Service(epoch, self.job().spec.minimum, membership=self.carried)
            case DeleteRendezvous():
                self.service = None
            case CreateWorker(name, group, index, incarnation):
                assert name not in self.pods, "two workers of one name"
                self.pods[name] = Worker(name, group, index, incarnation)
            case DeleteWorker(name):
                if name in self.pods:
                    self.pods[name] = dataclasses.replace(self.pods[name], deleting=True)
            case Expect(expectation):
                assert self.service is not None
                assert self.service.ready
                self.service.expectation = expectation

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
