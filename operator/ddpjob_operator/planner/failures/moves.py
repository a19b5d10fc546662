"""Decides which workers move away from nodes that new pods avoid, and when.

A worker moves if one of its processes failed on such a node, or if it has not started there. The
others on the node stay: they train. Its successor is created at once, at the same index. The worker
itself leaves like a worker that is drained, so no step is interrupted. It leaves at once if the job
keeps its minimum of workers without it; else it stays until its successor has registered. Until
then the service does not expect the successor, so that both change places in one membership.

Failures count as without a move, and the move itself counts as none. If no other node takes the successor, the worker
stays for as long as the minimum needs it.
May not: count failures; `bad_nodes` does that. May not: create or delete a pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ddpjob_operator.api.status import NodeFailures
from ddpjob_operator.planner.observed import Observed, Phase, Worker

Slot = tuple[str, int]  # group and index


def moving(workers: Iterable[Worker], nodes: Iterable[NodeFailures]) -> tuple[Worker, ...]:
    """Return the live workers that move.

    A worker stays if its own affinity excludes the node: no affinity would keep its successor off.
    """
    failed = {each.node: set(each.workers) for each in nodes if each.avoided}
    return tuple(
        worker
        for worker in workers
        if worker.live
        and worker.node in failed
        and worker.node not in worker.kept_off
        and (worker.name in failed[worker.node] or worker.phase is Phase.PENDING)
    )


def held(
    observed: Observed, movers: Sequence[Worker], others: Sequence[Worker]
) -> tuple[tuple[Worker, ...], tuple[Worker, ...]]:
    """Return the movers that the minimum needs, and their successors among the others.

    A successor that has registered is not among them: it is needed as well.
    """
    if not movers:
        return (), ()
    spec, report, status = observed.job.spec, observed.report, observed.job.status
    heard = set(report.workers) if report else set[str]()
    known = heard | set(status.membership.workers if status.membership else ())
    here = Counter(each.group for each in (*movers, *others) if each.name in heard)
    replaced = {slot_of(each) for each in others if each.name in heard}
    spare = here.total() - spec.minimum
    minimums = {group.name: group.min_replicas for group in spec.extra_worker_groups}
    found = list[Worker]()
    for each in sorted(movers, key=lambda mover: (slot_of(mover) not in replaced, mover.name)):
        if each.name not in known:
            continue  # it has never trained, so nothing needs it
        if spare > 0 and here[each.group] > minimums.get(each.group, 0):
            spare -= 1
            here[each.group] -= 1
        else:
            found.append(each)
    slots = {slot_of(each) for each in found}
    waiting = (each for each in others if slot_of(each) in slots and each.name not in heard)
    return tuple(found), tuple(waiting)


def describe(mover: Worker) -> str:
    """Return why a worker moves."""
    what = "has not started" if mover.phase is Phase.PENDING else "failed"
    return f"{mover.name} {what} on node {mover.node}, which new pods avoid"


def slot_of(worker: Worker) -> Slot:
    """Return group and index."""
    return worker.group, worker.index
