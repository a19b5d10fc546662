"""The run of a local job: the files of its folder as the data of a report. Pure.

course.jsonl    run, membership, point, hang, end. A later line of one membership or hang
                replaces the earlier one; a line that is cut off or unknown is skipped
timeline.jsonl  the lines that were printed
status.json     the last status
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.report.run import Change, Hang, Note, Point, Run, finite
from ddpjob_protocol.codec import decode
from ddpjob_protocol.messages.control import MembershipRecord

NOTED = frozenset(["chaos", "event", "waiting", "failed", "Failed", "Complete"])
MAX_NOTES = 500
Line = Mapping[str, Any]


def run_of_files(
    course: Iterable[str], timeline: Iterable[str], status: Mapping[str, Any], now: float
) -> Run:
    """Return the run that the lines of two files and a status describe."""
    lines = list(_parsed(course))
    found = DDPJobStatus.model_validate(status)
    head = next((each for each in lines if each.get("kind") == "run"), {})
    points = tuple(_points(lines))
    ended = found.completion_time is not None or any(each.get("kind") == "end" for each in lines)
    records = _records(lines)
    started = finite(head.get("started")) or (records[0].since if records else now)
    until = _end(lines, found, started, now)
    changes = tuple(_changes(records, points, until))
    progress = found.progress
    last = points[-1] if points else None
    stopped = ended and found.completion_time is None
    return Run(
        name=str(head.get("job", "job")),
        source=f"Local run of {head.get('namespace', 'default')}/{head.get('job', 'job')}",
        state="Stopped" if stopped else found.state,
        message=found.message,
        started=started,
        now=until,
        ended=ended,
        changes=changes,
        points=points,
        hangs=tuple(_hangs(lines)),
        notes=tuple(_notes(timeline, started))[-MAX_NOTES:],
        step=progress.step if progress else last.step if last else None,
        total_steps=progress.total_steps if progress else None,
        rate=last.rate if last else None,
        metrics=dict(last.metrics) if last else {},
        complete=not changes or changes[0].cause == "started",
    )


def _parsed(lines: Iterable[str]) -> Iterator[Line]:
    for line in lines:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield content


def _end(lines: list[Line], status: DDPJobStatus, started: float, now: float) -> float:
    ends = [finite(each.get("at")) for each in lines if each.get("kind") == "end"]
    if ends and ends[-1] is not None:
        return max(started, ends[-1])
    if status.completion_time is not None:
        return max(started, status.completion_time.timestamp())
    return max(started, now)


def _records(lines: list[Line]) -> list[MembershipRecord]:
    found: dict[str, MembershipRecord] = {}
    for each in lines:
        if each.get("kind") == "membership":
            try:
                record = decode(MembershipRecord, each.get("record"))
            except (TypeError, ValueError):
                continue
            found[record.id] = record
    return sorted(found.values(), key=lambda record: record.since)


def _points(lines: list[Line]) -> Iterator[Point]:
    for each in lines:
        at, step, metrics = finite(each.get("at")), each.get("step"), each.get("metrics")
        if each.get("kind") == "point" and at is not None and isinstance(step, int):
            given = metrics if isinstance(metrics, dict) else {}
            numbers = {name: n for name, v in given.items() if (n := finite(v)) is not None}
            if finite(step) is not None:
                yield Point(at, step, finite(each.get("rate")), numbers)


def _changes(
    records: list[MembershipRecord], points: tuple[Point, ...], end: float
) -> Iterator[Change]:
    """Yield the memberships; the time without a step begins with the last step, whosever it was."""
    ends = [*(record.since for record in records[1:]), end]
    last: float | None = None  # time of the last step
    furthest = 0  # step
    for record, until in zip(records, ends, strict=False):
        known = _with_last_step(record, points, until)
        since = known.since if last is None else last
        reached = until if known.first_step_at is None else known.first_step_at
        last = known.last_step_at or reached
        again = _steps_again(known, furthest)
        furthest = max(furthest, known.last_step or 0)
        yield Change(
            id=known.id,
            cause=str(known.cause),
            detail=known.detail,
            since=known.since,
            until=max(known.since, until),
            workers=len(known.workers),
            world_size=known.world_size,
            first_step=known.first_step,
            first_step_at=known.first_step_at,
            last_step=known.last_step,
            last_step_at=known.last_step_at,
            resumed_step=known.resumed_step,
            repeated_steps=max(known.repeated_steps, again),
            stall_seconds=max(0.0, reached - since),
        )


def _steps_again(record: MembershipRecord, furthest: int) -> int:
    """Return the number of steps that an earlier membership has done, too.

    The service counts them only for scripts that load through `Snapshots`.
    """
    if record.first_step is None or record.last_step is None:
        return 0
    return max(0, min(record.last_step, furthest) - record.first_step + 1)


def _with_last_step(
    record: MembershipRecord, points: tuple[Point, ...], until: float
) -> MembershipRecord:
    """Return a record with its last step, which the file has only once the membership is over."""
    first = record.first_step_at
    if first is None:
        return record
    later = [p for p in points if first <= p.at < until and p.at > (record.last_step_at or 0)]
    if later:
        return dataclasses.replace(record, last_step=later[-1].step, last_step_at=later[-1].at)
    if record.last_step_at is None:
        return dataclasses.replace(record, last_step=record.first_step, last_step_at=first)
    return record


def _hangs(lines: list[Line]) -> Iterator[Hang]:
    found: dict[float, Hang] = {}
    for each in lines:
        since, step = finite(each.get("since")), each.get("step")
        if each.get("kind") == "hang" and since is not None and isinstance(step, int):
            found[since] = Hang(since, finite(each.get("until")), step, str(each.get("text", "")))
    yield from found.values()


def _notes(timeline: Iterable[str], started: float) -> Iterator[Note]:
    for each in _parsed(timeline):
        at, kind = finite(each.get("at")), str(each.get("kind", ""))
        if kind in NOTED and each.get("text"):
            yield Note(None if at is None else started + at, kind, str(each["text"]))
