"""Counts the failures of a job on each node, and names the nodes that new pods avoid.

A node with a broken GPU fails every worker that it gets, and the scheduler gives it the next one:
it has room. Pods fail, and so do processes that the agent starts again in the same pod. The report
names the last ones, again and again; the status keeps for each node which of them it has counted.
May not: judge an end; `deaths` does that. May not: move a worker; `moves` does that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from ddpjob_operator.api.spec.failure_policy import FailurePolicy
from ddpjob_operator.api.status import NodeFailures
from ddpjob_operator.planner.observed import Worker
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.messages.warnings import MAX_NAMES, nodes_avoided
from ddpjob_protocol.text import plural, some

MAX_NODES = 50
MAX_WORKERS = 20  # of one node


def count_nodes(
    known: Iterable[NodeFailures],
    failed: Iterable[Worker],
    processes: Iterable[tuple[Worker, datetime]],
    policy: FailurePolicy,
    now: datetime,
    alive: Collection[str],
) -> tuple[NodeFailures, ...]:
    """Return the failures of each node with those of this pass, for the status; the newest last.

    `processes` has the worker and the time of each process that failed, the oldest first. `alive`
    has the names of the workers that still run. With a window, a node counts from the beginning
    once its last failure is older.
    """
    most, window = policy.avoid_nodes, policy.window_seconds
    if most is None:
        return ()
    since = None if window is None else now - timedelta(seconds=window)
    nodes = {each.node: each for each in known if since is None or each.at > since}
    found = [(worker, now.replace(microsecond=0), False) for worker in failed]
    found += [(worker, at, True) for worker, at in processes if since is None or at > since]
    for worker, at, is_process in found:
        if (node := worker.node) is None:
            continue
        old = nodes.get(node) or NodeFailures(node=node, count=0, at=at)
        counted = old.process_failed_at
        if is_process and counted is not None and at <= counted:
            continue
        nodes.pop(node, None)
        nodes[node] = old.model_copy(
            update={
                "count": old.count + 1,
                "at": max(old.at, at),
                "process_failed_at": at if is_process else counted,
                "workers": tuple(dict.fromkeys((*old.workers, worker.name))),
            }
        )
    return tuple(
        each.model_copy(
            update={
                "avoided": each.count >= most,
                "workers": tuple(name for name in each.workers if name in alive)[-MAX_WORKERS:],
            }
        )
        for each in list(nodes.values())[-MAX_NODES:]
    )


def failed_processes(
    workers: Iterable[Worker], report: Report | None
) -> Iterator[tuple[Worker, datetime]]:
    """Yield worker and time of each failed process in the report whose worker has its pod still."""
    known = {worker.name: worker for worker in workers}
    for each in report.process_failures if report else ():
        if worker := known.get(each.worker):
            yield worker, datetime.fromtimestamp(each.at, UTC)


def place_of(failure: Failure, workers: Iterable[Worker]) -> str:
    """Return the node of a failed process after a semicolon; empty if it is not known."""
    node = next((w.node for w in workers if w.name == failure.worker), None)
    return f"; {failure.worker} is on node {node}" if node else ""


def avoided(nodes: Iterable[NodeFailures]) -> tuple[str, ...]:
    """Return the names of the nodes that new pods avoid, sorted."""
    return tuple(sorted(each.node for each in nodes if each.avoided))


def why_pending(
    stuck: Iterable[Worker], nodes: Iterable[NodeFailures], policy: FailurePolicy
) -> str:
    """Return the warning that a worker has no node and some are avoided; empty if none has."""
    names = avoided(nodes)
    if not names or policy.avoid_nodes is None or not any(each.unschedulable for each in stuck):
        return ""
    return nodes_avoided(some(names, MAX_NAMES), plural(policy.avoid_nodes, "failure"))
