"""The text that people read of a job: rows of tables, and the description.

May not: read a clock, send a request or print; the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from ddpjob_operator.cli.jobs.cells import NONE, Table, age, parse
from ddpjob_operator.cli.jobs.rows import (
    EVENT_HEADS,
    HISTORY_HEADS,
    event_row,
    history_row,
    pod_row,
)
from ddpjob_protocol.text import duration, plural

Object = dict[str, Any]
ENDED = ("Complete", "Failed")
AFTER = {  # by the cause of a membership; the first one has no reason to name
    "lost": "a lost worker",
    "failed": "a failure",
    "left": "a worker left",
    "joined": "a worker joined",
}
FIRST_STEP = timedelta(seconds=60)
REPORTS = "ddpjob_trainer.step_done(step, total) does (docs/trainer.md)"
HEADS = ("NAME", "STATE", "READY", "WORLD", "PROGRESS", "RESTARTS", "AGE")
TOP_HEADS = ("NAME", "STATE", "WORLD", "PROGRESS", "DONE", "STEPS/S", "ETA", "METRICS")
WIDE = ("ETA", "CAUSE", "SNAPSHOT", "MESSAGE")


def job_row(job: Object, now: datetime, *, wide: bool = False) -> tuple[str, ...]:
    """Return the cells of a job for HEADS, or for HEADS and WIDE."""
    metadata, status = job["metadata"], job.get("status") or {}
    membership, restarts = status.get("membership") or {}, status.get("restarts") or {}
    ended = state(job) in ENDED
    row = (
        str(metadata["name"]),
        state(job),
        NONE if ended else status.get("ready") or NONE,
        NONE if ended else str(membership.get("worldSize", NONE)),
        progress(job),
        str(restarts.get("total", 0)),
        age(metadata["creationTimestamp"], now),
    )
    snapshot = str((status.get("snapshot") or {}).get("step", NONE))
    cause = membership.get("cause") or NONE
    return (*row, eta(job, now), cause, snapshot, message(job) or NONE) if wide else row


def top_row(job: Object, now: datetime) -> tuple[str, ...]:
    """Return the cells of a job for TOP_HEADS."""
    status = job.get("status") or {}
    found = status.get("progress") or {}
    step, total = found.get("step"), found.get("totalSteps")
    rate = None if state(job) in ENDED else found.get("stepsPerSecond")
    world = (status.get("membership") or {}).get("worldSize", NONE)
    return (
        str(job["metadata"]["name"]),
        state(job),
        NONE if state(job) in ENDED else str(world),
        progress(job),
        f"{step / total:.0%}" if total and step is not None else NONE,
        NONE if rate is None else f"{rate:.3g}",
        eta(job, now),
        metrics(job) or NONE,
    )


def top_data(job: Object, now: datetime) -> Object:
    """Return the values behind top_row() for programs; None for a value that is not known."""
    status = job.get("status") or {}
    found = status.get("progress") or {}
    at, active = found.get("estimatedCompletion"), state(job) not in ENDED
    return {
        "namespace": job["metadata"]["namespace"],
        "name": job["metadata"]["name"],
        "state": state(job),
        "worldSize": (status.get("membership") or {}).get("worldSize") if active else None,
        "step": found.get("step"),
        "totalSteps": found.get("totalSteps"),
        "stepsPerSecond": found.get("stepsPerSecond") if active else None,
        "secondsLeft": round((parse(at) - now).total_seconds())
        if at and is_training(job)
        else None,
        "metrics": found.get("metrics") or {},
    }


def is_training(job: Object) -> bool:
    """Return whether the job makes progress now."""
    return state(job) in ("Running", "Resizing")


def state(job: Object) -> str:
    """Return the conditions in one word."""
    return str((job.get("status") or {}).get("state") or "Pending")


def message(job: Object) -> str:
    """Return the first line of the explanation of the state."""
    first, *_ = explanation(job).splitlines() or [""]
    return first


def explanation(job: Object) -> str:
    """Return reason and message of the condition that gives the state its name."""
    found = conditions(job)
    condition = found.get(state(job)) or found.get("Running")
    if condition is None:
        return ""
    text = str(condition.get("message") or "")
    plain = state(job) in ("Running", "Complete", "Waiting", "Suspended")
    return text if plain and text else f"{condition['reason']}: {text}" if text else ""


def conditions(job: Object) -> dict[str, Object]:
    """Return the conditions by type."""
    return {each["type"]: each for each in (job.get("status") or {}).get("conditions") or ()}


def progress(job: Object) -> str:
    """Return the steps done, of all steps if their number is known."""
    found = (job.get("status") or {}).get("progress") or {}
    step, total = found.get("step"), found.get("totalSteps")
    if step is None:
        return NONE
    return f"{step}/{total}" if total else str(step)


def eta(job: Object, now: datetime) -> str:
    """Return the time until the expected last step, if it is known."""
    at = ((job.get("status") or {}).get("progress") or {}).get("estimatedCompletion")
    return duration((parse(at) - now).total_seconds()) if at and is_training(job) else NONE


# --- the description of one job -------------------------------------------------------------------


def describe(
    job: Object, pods: Sequence[Object] | str, events: Sequence[Object] | str, now: datetime
) -> Iterator[str]:
    """Yield the lines of `describe`; text in place of pods or events replaces their table."""
    yield f"{job['metadata']['name']} (namespace {job['metadata']['namespace']})"
    yield ""
    for head, text in _facts(job, now):
        yield f"{head:<12}{text}"
    if found := list(problems(job)):
        yield from ("", "Problems", *(f"  - {_indented(each)}" for each in found))
    history = (job.get("status") or {}).get("history") or ()
    rows = [
        history_row(entry, before, now)
        for before, entry in zip([{}, *history], history, strict=False)
    ]
    yield from _section("History", HISTORY_HEADS, history, rows)
    heads = ("NAME", "NODE-RANK", "STATE", "NODE", "AGE")
    yield from _section("Pods", heads, pods, [pod_row(job, pod, now) for pod in _list(pods)])
    rows = [event_row(event, now) for event in _list(events)]
    yield from _section("Events", EVENT_HEADS, events, rows)


def _facts(job: Object, now: datetime) -> Iterator[tuple[str, str]]:
    status = job.get("status") or {}
    condition = conditions(job).get(state(job)) or {}
    since = condition.get("lastTransitionTime")
    first, *rest = explanation(job).splitlines() or ["the operator has not seen the job yet"]
    yield "State", state(job) + (f" for {age(since, now)}" if since else "")
    yield "", _indented("\n".join((first, *rest)), 12)
    if waits := _waits(job):
        yield "Waiting", waits.removeprefix("waiting ")
    if commands := ", ".join(f"ddpjob explain {each}" for each in reasons(job)):
        yield "Explained", commands
    if status.get("ready") and state(job) not in ENDED:
        yield "Workers", f"{status['ready']} run"
    if found := status.get("membership"):
        size = f"{plural(len(found['workers']), 'worker')}, {plural(found['worldSize'], 'process')}"
        text = f"{found['id']}: {size}, formed {age(found['since'], now)} ago{_reason(found)}"
        yield "Membership", text
    if (found := status.get("progress")) and found.get("step") is not None:
        yield (
            "Progress",
            "; ".join(filter(None, (f"{progress(job)} steps", *_pace(job, now), metrics(job)))),
        )
    elif is_training(job) and _is_silent(status.get("membership"), now):
        yield "Progress", f"the script reports no steps; {REPORTS}"
    if found := _snapshot(status.get("snapshot") or {}, now):
        yield "Snapshot", found
    if (found := status.get("restarts")) and found.get("total"):
        kinds = (
            f"{plural(found['application'], 'failure')}, {plural(found['infrastructure'], 'loss')}"
        )
        repeated = found.get("repeatedSteps")
        more = f"; {plural(repeated, 'step')} repeated" if repeated else ""
        yield "Restarts", f"{found['total']} ({kinds}){more}"


def _is_silent(membership: Object | None, now: datetime) -> bool:
    """Return whether a script that reports steps would have reported one."""
    return membership is not None and now - parse(membership["since"]) > FIRST_STEP


def problems(job: Object) -> Iterator[str]:
    """Yield the warnings that hold; incidents are events."""
    for each in _ongoing(job):
        worker = each.get("worker")
        yield f"{worker}: {each['message']}" if worker else str(each["message"])


def reasons(job: Object) -> list[str]:
    """Return the reasons of a stall or a failure, and of the warnings that hold, each once."""
    found = [str(each["reason"]) for each in _ongoing(job)]
    if state(job) in ("Stalled", "Failed"):
        found.insert(0, str(conditions(job)[state(job)]["reason"]))
    return list(dict.fromkeys(found))


def _ongoing(job: Object) -> list[Object]:
    warnings = (job.get("status") or {}).get("warnings") or ()
    return [each for each in warnings if each.get("ongoing", True)]


def news(job: Object) -> str:
    """Return the state, its explanation and the membership in one line."""
    membership = (job.get("status") or {}).get("membership") or {}
    formed = f" (membership {membership['id']}{_reason(membership)})" if membership else ""
    return f"{state(job)}: {message(job)}{formed}" if message(job) else f"{state(job)}{formed}"


def _reason(membership: Object) -> str:
    cause = membership["cause"]
    return f" after {AFTER[cause]}" if cause in AFTER else ""


def metrics(job: Object) -> str:
    """Return the metrics that the script reported."""
    found = ((job.get("status") or {}).get("progress") or {}).get("metrics") or {}
    return ", ".join(f"{name} {value:.6g}" for name, value in found.items())


def _pace(job: Object, now: datetime) -> Iterator[str]:
    rate = ((job.get("status") or {}).get("progress") or {}).get("stepsPerSecond")
    if rate and state(job) not in ENDED:
        yield f"{rate:.3g} per second"
    if (left := eta(job, now)) != NONE:
        yield f"ends in {left}"


def _waits(job: Object) -> str:
    """Return what the job waits for beside the explanation of its state."""
    kind = "Running" if state(job) == "Stalled" else "Resizing"
    found = conditions(job).get(kind) or {}
    waits = found.get("reason") in ("Waiting", "RendezvousNotReady", "PartlyPlaced")
    return str(found.get("message") or "") if waits and state(job) not in ENDED else ""


def _snapshot(found: Object, now: datetime) -> str:
    parts = []
    if found.get("step") is not None:
        parts.append(f"step {found['step']}")
    if found.get("filesSyncedAt"):
        parts.append(f"files kept {age(found['filesSyncedAt'], now)} ago")
    return ", ".join(parts)


def _section(
    head: str, heads: Sequence[str], found: Sequence[Object] | str, rows: list[tuple[str, ...]]
) -> Iterator[str]:
    if isinstance(found, str):
        yield from ("", f"{head}: {found}")
    elif rows:
        yield from ("", head, *(f"  {line}" for line in Table(*heads).lines(rows)))


def _list(found: Sequence[Object] | str) -> Sequence[Object]:
    return () if isinstance(found, str) else found


def _indented(text: str, columns: int = 4) -> str:
    return text.replace("\n", "\n" + " " * columns)
