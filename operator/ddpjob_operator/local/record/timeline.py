"""Reports a local run: memberships with cause, steps, injected faults, the result.

Prints for people and writes `timeline.jsonl` for programs. May not: change anything else.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Protocol

from rich.text import Text

from ddpjob_operator.local.output.screen import Screen
from ddpjob_operator.local.output.signs_of_life import SignsOfLife
from ddpjob_operator.planner.actions import Event
from ddpjob_operator.planner.status import events
from ddpjob_protocol.messages.control import MembershipRecord, Report, ServiceState
from ddpjob_protocol.messages.membership import MembershipId

STEP_LINES = 10  # a line at every tenth of all steps
STEP_SECONDS = 10.0  # seconds without a line before another step line
JOIN_SECONDS = 2.0  # Reported is a joiner that waits longer.
JOINER_WAITS = "running; "  # begins the reason of a service that lets a joiner wait
# Events with lines of their own: memberships from the report, the result from the command.
REPORTED_ELSEWHERE = frozenset(
    [
        "Started",
        "WorkerLost",
        "Restarted",
        "WorkerLeft",
        "WorkerJoined",
        "StepsRepeated",
        "Completed",
        "Failed",
    ]
)
STYLES = {
    "started": "green", "joined": "green", "resumed": "cyan", "lost": "yellow",
    "failed": "red", "left": "yellow", "waiting": "yellow", "chaos": "magenta",
    "Complete": "bold green", "Failed": "bold red",
}  # fmt: skip


class Printer(Protocol):
    """A screen or a console."""

    def print(self, *objects: Any, soft_wrap: bool | None = None) -> None:
        """Print a line."""


class Timeline:
    """The timeline of one run."""

    def __init__(self, console: Printer, file: Path, screen: Screen | None = None) -> None:
        """`screen` shows a progress bar, and the output of the ranks."""
        self._console = console
        self._file = file
        self._screen = screen
        self._start = time.monotonic()
        self._signs = SignsOfLife()
        self._signs.restart(self._start)
        self._joining = ""  # reason why a joiner waits
        self._joining_since = 0.0
        self._failure = ""  # reason of the last failure that a line reported
        self._seen: dict[str, MembershipRecord] = {}
        self._next_step = 0
        self._last_line = 0.0
        self._waiting = ""

    def line(self, kind: str, text: str, *, on_bar: bool = False, **facts: Any) -> None:
        """Print and record a line with time, kind and text.

        A progress bar, if there is one, replaces a line that is `on_bar`.
        """
        at = time.monotonic() - self._start
        self._last_line = at
        stamp = f"{int(at // 60):02d}:{at % 60:04.1f}"
        style = STYLES.get(kind, "")
        line = Text.assemble((stamp, "dim"), "  ", (f"{kind:<10}", style), text)
        if not (on_bar and self._screen is not None and self._screen.has_bar):
            self._console.print(line, soft_wrap=True)
        with (
            contextlib.suppress(OSError),
            self._file.open("a") as file,
        ):  # a full disk must not stop the job
            file.write(json.dumps({"at": round(at, 3), "kind": kind, "text": text, **facts}) + "\n")

    def event(self, event: Event) -> None:
        """Report an event of the planner, unless another line reports it."""
        if event.reason not in REPORTED_ELSEWHERE:
            self.line("event", f"{event.reason}: {event.message}")

    def chaos(self, text: str) -> None:
        """Report an injected fault."""
        self.line("chaos", text)

    def follow(self, report: Report) -> None:
        """Report the news in a report of the rendezvous service."""
        for item in report.memberships:
            known = self._seen.get(item.id)
            if known is None:
                self._membership(item)
            if item.resumed_step is not None and (known is None or known.resumed_step is None):
                self._resumed(item, stayed=report.live and item is not report.memberships[0])
            if item.first_step is not None and (known is None or known.first_step is None):
                self._first_step(item)
            self._seen[item.id] = item
        if (
            report.memberships
            and report.state is ServiceState.WAITING
            and report.reason != self._waiting
        ):
            self.line("waiting", report.reason)
            self._failure = report.failure.summary if report.failure else ""
        self._waiting = report.reason if report.state is ServiceState.WAITING else ""
        self._steps(report)
        if self._screen is not None:
            self._screen.follow(report)

    def tick(self, report: Report | None, logs: Path) -> None:
        """Report a long silence, and a worker that came up and has to wait."""
        now = time.monotonic()
        self._report_joiners(report, now)
        newest = report.memberships[-1] if report and report.memberships else None
        if newest is not None and newest.first_step is not None:
            return
        printed = self._start + self._last_line
        if self._screen is not None:
            printed = max(printed, self._screen.printed_at)
        silent = self._signs.due(printed, now)
        if silent is None:
            return
        if newest is None:
            reason = report.reason if report else "the rendezvous service does not answer"
            self.line("waiting", f"for {silent:.0f} s: {reason}; logs: {logs}")
        elif report and report.state is ServiceState.RUNNING:
            text = f"for {silent:.0f} s; the script reports no steps; its output: {logs}"
            self.line("running", text)
        elif report:
            self.line("waiting", f"for {silent:.0f} s: {report.reason}")

    def _report_joiners(self, report: Report | None, now: float) -> None:
        """Report why a worker does not join, if it waits for more than a moment."""
        running = report is not None and report.state is ServiceState.RUNNING
        reason = report.reason.partition(JOINER_WAITS)[2] if report and running else ""
        if reason != self._joining:
            self._joining, self._joining_since = reason, now
        elif reason and self._joining_since and now - self._joining_since > JOIN_SECONDS:
            self._joining_since = 0.0
            self.line("waiting", reason)

    def _membership(self, item: MembershipRecord) -> None:
        number = MembershipId.parse(item.id).round
        detail = item.detail
        if self._failure and detail.startswith(self._failure):
            detail = "restarted after that failure" + detail.removeprefix(self._failure)
        text = f"membership {number}: world size {item.world_size}; {detail}"
        self.line(item.cause, text, id=item.id, world_size=item.world_size)
        self._failure = ""
        self._signs.restart(time.monotonic())

    def _resumed(self, item: MembershipRecord, *, stayed: bool) -> None:
        again = (
            f"; {events.repeated_steps_text(item.repeated_steps)}" if item.repeated_steps else ""
        )
        if item.resumed_step:
            how = "in memory, after" if stayed else "from the snapshot of"
            self.line("resumed", f"{how} step {item.resumed_step}{again}")
        elif again:
            self.line("resumed", f"from the beginning{again}")

    def _first_step(self, item: MembershipRecord) -> None:
        seconds = (item.first_step_at or item.since) - item.since
        self.line("step", f"{item.first_step} is the first step, after {seconds:.1f} s")
        self._next_step = 0

    def _steps(self, report: Report) -> None:
        if report.step is None:
            return
        silence = time.monotonic() - self._start - self._last_line
        total = report.total_steps
        if report.step < self._next_step and silence < STEP_SECONDS:
            return
        every = max(1, (total or 1000) // STEP_LINES)
        self._next_step = (report.step // every + 1) * every
        size = report.membership.world_size if report.membership else 0
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in report.metrics.items())
        of = f" of {total}" if total else ""
        text = f"{report.step}{of}  world size {size}  {metrics}"
        self.line("step", text, on_bar=True, step=report.step, metrics=report.metrics)
