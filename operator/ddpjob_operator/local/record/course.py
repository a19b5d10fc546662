"""Records the course of a local run in `course.jsonl`, for `ddpjob report` and the live page.

The file stays small: of a long run it has a point every few seconds or minutes.
May not: change anything else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

from ddpjob_operator.planner.status.stall_message import describe_stall
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.control import MembershipRecord, Report, Stall

FILE = "course.jsonl"
MAX_POINTS = 600  # then every second one is dropped, and points come half as often
FIRST_INTERVAL = 0.2  # seconds between two points
MAX_METRICS = 16  # of a point
MAX_KEPT = 500  # memberships; as many hangs. The oldest are dropped
MAX_LINES = 4 * MAX_POINTS  # then the file is written again
Line = dict[str, Any]


class Course:
    """The course of one run, in memory and on disk."""

    def __init__(self, file: Path, job: str, namespace: str, started: float) -> None:
        """`started` and all other times are seconds since the epoch."""
        self._file = file
        self._head: Line = {"kind": "run", "job": job, "namespace": namespace, "started": started}
        self._memberships: dict[str, Line] = {}
        self._hangs: dict[float, Line] = {}
        self._points: list[Line] = []
        self._pending: Line | None = None  # the newest point, if it came too soon
        self._interval = FIRST_INTERVAL
        self._stall: Stall | None = None
        self._newest: MembershipRecord | None = None
        self._lines = 0
        self._write_all()

    def follow(self, report: Report, *, restarts: bool = False) -> None:
        """Record the news in a report; `restarts`: a job that hangs restarts by itself."""
        for number, record in enumerate(report.memberships, 1):
            is_newest = number == len(report.memberships)
            self._membership(_without_last_step(record) if is_newest else record)
            self._newest = record
        self._hang(report, restarts=restarts)
        if report.step is not None and report.step_at is not None:
            self._point(report, report.step_at)

    def end(self, at: float) -> None:
        """Record the last step and the end of the run."""
        if self._pending is not None:
            self._add_point(self._pending)
        if self._newest is not None:
            self._membership(self._newest)
        self._append({"kind": "end", "at": at})

    def _membership(self, record: MembershipRecord) -> None:
        line = {"kind": "membership", "record": encode(record)}
        if self._memberships.get(record.id) != line:
            self._memberships[record.id] = line
            _bound(self._memberships)
            self._append(line)

    def _hang(self, report: Report, *, restarts: bool) -> None:
        if report.stall == self._stall:
            return
        if self._stall is not None and report.step_at is not None:
            until = max(report.step_at, self._stall.since)
            self._add_hang({**self._hangs[self._stall.since], "until": until})
        self._stall = report.stall
        if report.stall is not None:
            text, since = describe_stall(report.stall, restarts=restarts), report.stall.since
            line = {"kind": "hang", "since": since, "step": report.stall.step, "text": text}
            self._add_hang({**line, "until": None})

    def _add_hang(self, line: Line) -> None:
        self._hangs[line["since"]] = line
        _bound(self._hangs)
        self._append(line)

    def _point(self, report: Report, at: float) -> None:
        metrics = dict(list(report.metrics.items())[:MAX_METRICS])
        rate = report.steps_per_second
        line = {"kind": "point", "at": at, "step": report.step, "rate": rate, "metrics": metrics}
        if self._points and at - self._points[-1]["at"] < self._interval:
            self._pending = line if line != self._points[-1] else None
        else:
            self._add_point(line)

    def _add_point(self, line: Line) -> None:
        self._pending = None
        if self._points and self._points[-1] == line:
            return
        self._points.append(line)
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._interval *= 2
            self._write_all()
        else:
            self._append(line)

    def _append(self, line: Line) -> None:
        self._lines += 1
        if self._lines > MAX_LINES:
            self._write_all()
            return
        with contextlib.suppress(OSError), self._file.open("a") as file:  # a disk may be full
            file.write(json.dumps(line) + "\n")

    def _write_all(self) -> None:
        lines = [self._head, *self._memberships.values(), *self._hangs.values(), *self._points]
        self._lines = len(lines)
        aside = self._file.with_name(f".{self._file.name}.new")
        with contextlib.suppress(OSError):
            aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
            aside.replace(self._file)


def _without_last_step(record: MembershipRecord) -> MembershipRecord:
    """Return a record without the values that change with every step; the points have them."""
    return dataclasses.replace(record, last_step=None, last_step_at=None, snapshot_step=None)


def _bound(kept: dict[Any, Line]) -> None:
    while len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
