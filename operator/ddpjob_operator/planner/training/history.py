"""The history in the status: the last memberships of a job, with cause, stall and first step.

The rendezvous service reports the memberships, and forgets them when it restarts. The pods report
why workers ended, and are deleted soon. The status keeps both. A fact is written once: a later
observation adds missing facts and changes none.
May not: remember anything outside the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from ddpjob_operator.api.status import DDPJobStatus, HistoryEntry
from ddpjob_operator.planner.failures.diagnosis import quote
from ddpjob_operator.planner.observed import Worker
from ddpjob_protocol.messages.control import MembershipRecord, Report
from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_protocol.text import shorten

MAX_ENTRIES = 20
MAX_MESSAGE = 300  # characters
MAX_ENDED = 3  # members of an entry whose end is explained
MAX_END = 120  # characters


def update_history(
    status: DDPJobStatus, report: Report | None, workers: Iterable[Worker]
) -> tuple[HistoryEntry, ...]:
    """Return the last memberships: the known ones, completed, and the new ones of a report."""
    records = report.memberships if report is not None else ()
    entries = {each.membership: each for each in status.history}
    members = {record.id: record.workers for record in records}
    if status.membership is not None:
        members[status.membership.id] = status.membership.workers
    before: MembershipRecord | None = None
    for record in records:
        entries[record.id] = _entry(entries.get(record.id), record, before)
        before = record
    for worker in workers:
        _add_end(entries, members, worker)
    return tuple(sorted(entries.values(), key=_id_of)[-MAX_ENTRIES:])


def _id_of(entry: HistoryEntry) -> MembershipId:
    return MembershipId.parse(entry.membership)


def _entry(
    known: HistoryEntry | None, record: MembershipRecord, before: MembershipRecord | None
) -> HistoryEntry:
    found = HistoryEntry(
        membership=record.id,
        cause=record.cause,
        message=shorten(record.detail, MAX_MESSAGE),
        since=datetime.fromtimestamp(int(record.since), UTC),
        workers=len(record.workers),
        world_size=record.world_size,
        stall_seconds=_stall(record, before),
        first_step=record.first_step,
        resumed_step=record.resumed_step,
        repeated_steps=record.repeated_steps or None,
    )
    if known is None:
        return found
    kept = known.model_dump(exclude_none=True)
    if record.repeated_steps > (known.repeated_steps or 0):
        kept.pop("repeated_steps", None)  # the count grows until all workers have reported
    return found.model_copy(update=kept)


def _stall(record: MembershipRecord, before: MembershipRecord | None) -> float | None:
    if record.first_step_at is None:
        return None
    since = record.since if before is None or before.last_step_at is None else before.last_step_at
    return round(max(0.0, record.first_step_at - since), 1)


def _add_end(
    entries: dict[str, HistoryEntry], members: Mapping[str, tuple[str, ...]], worker: Worker
) -> None:
    """Add the reason for a worker's end to the last membership that had the worker."""
    reason = _end(worker)
    ids = [id_ for id_, names in members.items() if worker.name in names and id_ in entries]
    if not reason or not ids:
        return
    entry = entries[max(ids, key=MembershipId.parse)]
    known = any(each.startswith(f"{worker.name}: ") for each in entry.ended)
    if not known and len(entry.ended) < MAX_ENDED:
        ended = (*entry.ended, f"{worker.name}: {reason}")
        entries[entry.membership] = entry.model_copy(update={"ended": ended})


def _end(worker: Worker) -> str:
    """Return why a worker ended or is deleted, or an empty text."""
    if worker.live:
        return ""
    reason = "" if worker.reason == "Error" else worker.reason  # of any exit code but 0
    texts = dict.fromkeys((reason, quote(worker.message)))
    return shorten(": ".join(filter(None, texts)), MAX_END)
