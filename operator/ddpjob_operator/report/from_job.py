"""The run of a job on a cluster: its status as the data of a report. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api.status import DDPJobStatus, HistoryEntry
from ddpjob_operator.report.run import Change, Note, Run


def run_of_job(job: Mapping[str, Any], now: float) -> Run:
    """Return the run of a job object, as the API server sends it."""
    return run_of_status(job["metadata"], DDPJobStatus.model_validate(job.get("status") or {}), now)


def run_of_status(metadata: Mapping[str, Any], status: DDPJobStatus, now: float) -> Run:
    """Return the run of a job by its metadata and its status."""
    ended = status.completion_time is not None
    until = _seconds(status.completion_time) if status.completion_time else now
    history = status.history
    ends = [*(_seconds(each.since) for each in history[1:]), until]
    changes = tuple(_change(each, end) for each, end in zip(history, ends, strict=False))
    started = _seconds(status.start_time) if status.start_time else None
    progress = status.progress
    notes = (
        Note(_seconds(each.since), each.reason, f"{each.message} {each.worker}".strip())
        for each in status.warnings
    )
    return Run(
        name=str(metadata["name"]),
        source=f"DDPJob {metadata.get('namespace', 'default')}/{metadata['name']}",
        state=status.state,
        message=status.message,
        started=started or (changes[0].since if changes else until),
        now=max(until, started or until),
        ended=ended,
        changes=changes,
        notes=tuple(notes),
        step=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        rate=progress.steps_per_second if progress else None,
        metrics=dict(progress.metrics) if progress else {},
        complete=not changes or _is_first(history[0], started),
    )


def _is_first(entry: HistoryEntry, started: float | None) -> bool:
    """Return whether no membership since the start of the job is missing before an entry."""
    return entry.cause == "started" and (started is None or _seconds(entry.since) >= started)


def _change(entry: HistoryEntry, until: float) -> Change:
    since = _seconds(entry.since)
    return Change(
        id=entry.membership,
        cause=entry.cause,
        detail=entry.message,
        since=since,
        until=max(since, until),
        workers=entry.workers,
        world_size=entry.world_size,
        first_step=entry.first_step,
        resumed_step=entry.resumed_step,
        repeated_steps=entry.repeated_steps or 0,
        stall_seconds=entry.stall_seconds,
        ended=entry.ended,
    )


def _seconds(at: datetime) -> float:
    return at.timestamp()
