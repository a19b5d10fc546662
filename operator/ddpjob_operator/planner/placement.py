"""Decides which workers to keep, drain, create and delete.

Theory of operation. Each group keeps `replicas` live workers: running workers before pending
workers, low indices before high indices. The other workers drain: the rendezvous service excludes
a draining worker from the next membership, then the operator deletes the worker. Missing workers
are created at the lowest free indices. A new incarnation is one higher than every known
incarnation of the index. A name is therefore not used again while the deletion of a predecessor
hangs.

Pods that were made from fields that changed before the first membership are outdated. They are
deleted and replaced in the pass that observes the change: the status has no membership then, and
the API server accepts no such change after it has one.

A missing or ended worker is replaced immediately. If workers of its slot end one after the other by
their own doing, the replacement waits for a backoff (`deaths`).
If the scheduler finds no node for a worker within SCHEDULING_SECONDS, the worker is stuck, and so
is a worker behind a scheduling gate. A stuck worker stays, but the membership does not wait for it.

A worker that failed on a node that new pods avoid moves (`moves`): it drains, and its successor at
the same index is created at once. If the minimum needs the worker, it is held until then.

May not: know how workers are created, or read a clock.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec.worker_groups import Group
from ddpjob_operator.planner.actions import CreateWorker, DeleteWorker
from ddpjob_operator.planner.failures import moves
from ddpjob_operator.planner.failures.deaths import Deaths, paused
from ddpjob_operator.planner.failures.moves import Slot, slot_of
from ddpjob_operator.planner.joined import joined_ever, members_of
from ddpjob_operator.planner.observed import Observed, Phase, Worker
from ddpjob_operator.planner.silence import silent_workers
from ddpjob_operator.planner.silence.silent_service import SCHEDULING_SECONDS
from ddpjob_protocol.messages.control import Report, ServiceState


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """The decision about all workers of a job."""

    kept: tuple[Worker, ...]
    draining: tuple[Worker, ...]
    create: tuple[CreateWorker, ...]
    delete: tuple[DeleteWorker, ...]
    failing: tuple[Worker, ...]  # ended by their own doing; replaced after the backoff
    replace_after: datetime | None  # end of the backoff
    deaths: Deaths  # so far
    stuck: tuple[Worker, ...] = ()  # kept workers, and successors, without a node
    stuck_at: datetime | None = None  # time at which the next worker becomes stuck
    movers: tuple[Worker, ...] = ()  # that leave an avoided node; kept if held, else draining
    held: tuple[Worker, ...] = ()  # movers that stay until their successors have registered
    successors: tuple[Worker, ...] = ()  # of those, not registered yet

    @functools.cached_property
    def stuck_names(self) -> frozenset[str]:
        """Names of the workers that are stuck."""
        return frozenset(worker.name for worker in self.stuck)

    @property
    def coming(self) -> tuple[CreateWorker, ...]:
        """The new workers, without the successors of held workers."""
        held = {slot_of(worker) for worker in self.held}
        return tuple(each for each in self.create if (each.group, each.index) not in held)


def plan_workers(observed: Observed, ended: Deaths, now: datetime) -> WorkerPlan:
    """Return the plan for all workers of a job."""
    kept, draining, missing = [], [], list[Slot]()
    groups = observed.job.spec.groups()
    silent = silent_workers.overdue(observed, now)
    outdated = [
        w for w in observed.workers if w.live and (observed.is_outdated(w) or w.name in silent)
    ]
    known = {group.name for group in groups}
    replaced = {worker.name for worker in outdated}
    current = [worker for worker in observed.workers if worker.name not in replaced]
    movers = moves.moving((w for w in current if w.group in known), ended.nodes)
    moved = {worker.name for worker in movers}
    current = [worker for worker in current if worker.name not in moved]
    for group in groups:
        stay, go, slots = _divide(group, current, movers)
        kept += stay
        draining += go
        missing += slots
    draining += [w for w in current if w.live and w.group not in known]
    held, successors = moves.held(observed, movers, kept)
    apart = {worker.name for worker in (*held, *successors)}
    draining += [worker for worker in movers if worker.name not in apart]
    kept = [*(worker for worker in kept if worker.name not in apart), *held]
    pauses = paused(ended.slots, now)
    last = {worker.name: worker for worker in observed.workers}
    waiting_slots = {slot: pauses[slot] for slot in missing if slot in pauses}
    waiting_slots = {slot: each for slot, each in waiting_slots.items() if each.worker in last}
    failing = tuple(last[each.worker] for each in waiting_slots.values())
    replace_after = min((each.retry_at for each in waiting_slots.values()), default=None)
    missing = [slot for slot in missing if slot not in waiting_slots]
    paused_names = {worker.name for worker in failing}
    over = (w for w in observed.workers if w.terminal and not w.deleting)
    done = [worker for worker in over if worker.name not in paused_names]
    removable = [w for w in draining if _may_delete(w, observed.report)] + outdated
    chosen = (*kept, *successors)
    waiting = {w.name: _stuck_at(w, now) for w in chosen if w.unschedulable or w.gates}
    return WorkerPlan(
        movers=movers,
        held=held,
        successors=successors,
        stuck=tuple(w for w in chosen if w.name in waiting and waiting[w.name] <= now),
        stuck_at=min((at for at in waiting.values() if at > now), default=None),
        kept=tuple(kept),
        draining=(*draining, *outdated),
        create=_creations(observed, missing, ended.avoided),
        delete=tuple(DeleteWorker(worker.name) for worker in (*removable, *done)),
        failing=failing,
        replace_after=replace_after,
        deaths=ended,
    )


def _divide(
    group: Group, workers: Iterable[Worker], movers: Iterable[Worker]
) -> tuple[list[Worker], list[Worker], list[Slot]]:
    """Return the workers that stay and that go, and the slots to fill, those of movers first."""
    live = [worker for worker in workers if worker.live and worker.group == group.name]
    live.sort(key=lambda w: (w.phase is not Phase.RUNNING, w.index, -w.incarnation))
    taken = {worker.index for worker in live}
    left = [each.index for each in movers if each.group == group.name]
    indices = itertools.chain(left, (index for index in itertools.count() if index not in left))
    free = (index for index in indices if index not in taken)
    missing = itertools.islice(free, max(0, group.replicas - len(live)))
    stay, go = live[: group.replicas], live[group.replicas :]
    stay.sort(key=lambda worker: worker.index)
    return stay, go, [(group.name, index) for index in missing]


def _stuck_at(worker: Worker, now: datetime) -> datetime:
    since = worker.unschedulable_since
    return now if since is None or worker.gates else since + timedelta(seconds=SCHEDULING_SECONDS)


def _may_delete(worker: Worker, report: Report | None) -> bool:
    """Return whether a draining worker may be deleted.

    A worker that trains is needed until a membership without the worker has formed.
    """
    if worker.phase is Phase.PENDING:
        return True
    if report is None:
        return False
    return report.state is not ServiceState.RUNNING or worker.name not in members_of(report)


def _creations(
    observed: Observed, missing: Iterable[Slot], avoid: tuple[str, ...]
) -> tuple[CreateWorker, ...]:
    job = observed.job.metadata.name
    size = {group.name: group.gpus for group in observed.job.spec.groups()}
    highest: dict[Slot, int] = {}
    for group, index, incarnation in _existing_names(observed):
        slot = (group, index)
        highest[slot] = max(incarnation, highest.get(slot, 0))
    return tuple(
        CreateWorker(constants.worker_name(job, group, index, n), group, index, n, avoid)
        # Large workers first: small workers could occupy the only nodes with enough GPUs.
        for group, index in sorted(missing, key=lambda slot: -size[slot[0]])
        for n in (1 + highest.get((group, index), 0),)
    )


def _existing_names(observed: Observed) -> Iterator[tuple[str, int, int]]:
    for worker in observed.workers:
        yield worker.group, worker.index, worker.incarnation
    for name in joined_ever(observed.job, observed.report):
        if parts := constants.parse_worker_name(observed.job.metadata.name, name):
            yield parts
