"""The rows of the tables of `describe`: pods, memberships, events.

May not: read a clock; the caller passes the time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ddpjob_operator.cli.jobs.cells import NONE, age

Object = dict[str, Any]
HISTORY_HEADS = ("AGE", "MEMBERSHIP", "CAUSE", "WORLD", "STALL", "STEPS", "MESSAGE")
EVENT_HEADS = ("AGE", "REASON", "MESSAGE")


def pod_row(job: Object, pod: Object, now: datetime) -> tuple[str, ...]:
    """Return name, node rank, state, node and age of a pod."""
    name = pod["metadata"]["name"]
    members = ((job.get("status") or {}).get("membership") or {}).get("workers") or ()
    rank = str(list(members).index(name)) if name in members else NONE
    node = (pod.get("spec") or {}).get("nodeName") or NONE
    return name, rank, pod_state(pod), node, age(pod["metadata"].get("creationTimestamp"), now)


def pod_state(pod: Object) -> str:
    """Return the phase of a pod, or the reason why a container waits or has ended."""
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status") or {}
    for each in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        current = each.get("state") or {}
        if reason := (current.get("waiting") or {}).get("reason"):
            return str(reason)
        if (ended := current.get("terminated")) and ended.get("exitCode"):
            return f"{ended.get('reason') or 'Error'} (exit code {ended['exitCode']})"
    return str(status.get("phase") or "Pending")


def history_row(entry: Object, before: Object, now: datetime) -> tuple[str, ...]:
    """Return the cells of a membership for HISTORY_HEADS; `before` is the one it replaced."""
    stall, first, resumed = (entry.get(n) for n in ("stallSeconds", "firstStep", "resumedStep"))
    steps = NONE if first is None else f"from {first}"
    if entry.get("repeatedSteps"):
        steps += f", {entry['repeatedSteps']} again"
    elif first is None and resumed is not None:
        steps = f"after {resumed}"
    return (
        age(entry["since"], now),
        entry["membership"],
        entry["cause"],
        str(entry["worldSize"]),
        NONE if stall is None else f"{stall:.3g}s",
        steps,
        "; ".join(filter(None, (entry.get("message"), *before.get("ended", ())))) or NONE,
    )


def event_row(event: Object, now: datetime) -> tuple[str, ...]:
    """Return age, reason and message of an event; a mark shows a warning."""
    moment = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
    mark = "! " if event.get("type") == "Warning" else ""
    return age(moment, now), event["reason"], mark + " ".join(event["message"].split())
