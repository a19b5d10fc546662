"""The strict parser of the report of a rendezvous service, for the operator.

A service of another version, or a foreign server, may send anything. A report is accepted or
refused as a whole, so that the planner meets no value that it cannot put into a status.
"""

from __future__ import annotations

from typing import Any

from ddpjob_protocol.codec import DecodeError, decode, show
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.messages.membership import Cause
from ddpjob_protocol.parsers import checks
from ddpjob_protocol.parsers.checks import (
    count,
    each,
    fields,
    identity,
    name,
    number,
    seconds,
    text,
)
from ddpjob_protocol.parsers.progress import MAX_WHERE, check_metrics
from ddpjob_protocol.parsers.report_check import (
    FAILURE_TIMES,
    MAX_RANKS,
    MAX_WARNING,
    MAX_WORKERS,
    MEMBERSHIP,
    check_exit_code,
    check_reason,
)

MAX_ITEMS = 1000  # of other lists
MAX_TEXT = 200_000  # characters: the traceback of a failure is the longest text
MAX_RESTARTS = 2**31


def parse_report(data: Any) -> Report:
    """Return the report in the answer of a service; raise DecodeError if a value is odd."""
    report = decode(Report, _REPORT(data, "Report"))
    if report.membership is not None and report.membership.world_size > MAX_RANKS:
        raise DecodeError(f"Report.membership has more than {MAX_RANKS} processes")
    return report


def _long_text(data: Any, where: str) -> str:
    count(len(text(data, where)), f"the length of {where}", MAX_TEXT)
    return str(data)


def _rate(data: Any, where: str) -> float:
    if not 0 <= number(data, where) <= checks.MAX_COUNT:
        raise DecodeError(f"{where} is {data} instead of a rate")
    return float(data)


def _cause(data: Any, where: str) -> str:
    if data not in [each.value for each in Cause]:
        raise DecodeError(f"{where} is {show(data)} instead of a known cause")
    return str(data)


_RANKS = each(checks.count_to(MAX_RANKS), MAX_RANKS)
_WORKERS = each(name, MAX_WORKERS)
_FAILURE = fields(
    {
        "at": seconds,
        "summary": _long_text,
        "traceback": _long_text,
        "rank": count,
        "exit_code": check_exit_code,
        "reason": name,
        "worker": name,
    }
)
_RECORD = fields(
    {
        "id": identity,
        "cause": _cause,
        "detail": _long_text,
        "workers": _WORKERS,
        "world_size": checks.count_to(MAX_RANKS),
        "since": seconds,
        "snapshot_step": count,
        "resumed_step": count,
        "first_step": count,
        "first_step_at": seconds,
        "last_step": count,
        "last_step_at": seconds,
        "repeated_steps": count,
    }
)
_RANK_GROUP = fields(
    {"ranks": _RANKS, "workers": _WORKERS, "step": count, "where": checks.text_to(MAX_WHERE)}
)
_STALL = fields(
    {
        "since": seconds,
        "step": count,
        "usual_step_seconds": seconds,
        "groups": each(_RANK_GROUP, MAX_RANKS),
        "ended": _WORKERS,
        "left": _WORKERS,
    }
)
_WARNING = fields(
    {
        "reason": check_reason,
        "message": checks.text_to(MAX_WARNING),
        "worker": name,
        "since": seconds,
        "count": count,
    }
)
_WORKER_RANKS = fields(
    {
        "worker": name,
        "first": checks.count_to(MAX_RANKS),
        "processes": checks.count_to(MAX_RANKS),
    }
)
_REPORT = fields(
    {
        "version": count,
        "term": count,
        "boot": count,
        "reason": _long_text,
        "workers": _WORKERS,
        "membership": MEMBERSHIP,
        "failures": checks.count_to(MAX_RESTARTS),
        "failure_times": FAILURE_TIMES,
        "losses": checks.count_to(MAX_RESTARTS),
        "step": count,
        "step_at": seconds,
        "steps_per_second": _rate,
        "total_steps": count,
        "metrics": check_metrics,
        "snapshot_step": count,
        "failure": _FAILURE,
        "process_failures": each(
            fields({"worker": name, "at": checks.count_to(int(checks.MAX_SECONDS))}), MAX_ITEMS
        ),
        "memberships": each(_RECORD, MAX_ITEMS),
        "stall": _STALL,
        "warnings": each(_WARNING, MAX_ITEMS),
        "repeated_steps": count,
        "snapshots_skipped": count,
        "files": fields({"synced_at": seconds, "size": count}),
        "ranks": each(_WORKER_RANKS, MAX_WORKERS),
    }
)
