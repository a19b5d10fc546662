"""Counts the workers of a job that failed on each node, and names the nodes that new pods avoid.

A node with a broken GPU fails every worker that it gets, and the scheduler gives it the next one:
it has room. May not: judge an end; `deaths` does that. May not: move a pod that runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from ddpjob_operator.api.spec.failure_policy import FailurePolicy
from ddpjob_operator.api.status import NodeFailures
from ddpjob_operator.planner.observed import Worker
from ddpjob_protocol.messages.warnings import MAX_NAMES, nodes_avoided
from ddpjob_protocol.text import plural, some

MAX_NODES = 50


def count_nodes(
    known: Iterable[NodeFailures], failed: Iterable[Worker], policy: FailurePolicy, now: datetime
) -> tuple[NodeFailures, ...]:
    """Return the failures of each node with those of this pass, for the status; the newest last.

    With a window, a node counts from the beginning once its last failure is older.
    """
    most, window = policy.avoid_nodes, policy.window_seconds
    if most is None:
        return ()
    since = None if window is None else now - timedelta(seconds=window)
    nodes = {each.node: each for each in known if since is None or each.at > since}
    for worker in failed:
        if worker.node:
            before = nodes.pop(worker.node, None)
            count = 1 + (before.count if before else 0)
            at = now.replace(microsecond=0)
            nodes[worker.node] = NodeFailures(node=worker.node, count=count, at=at)
    kept = list(nodes.values())[-MAX_NODES:]
    return tuple(each.model_copy(update={"avoided": each.count >= most}) for each in kept)


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
    return nodes_avoided(some(names, MAX_NAMES), plural(policy.avoid_nodes, "worker"))
