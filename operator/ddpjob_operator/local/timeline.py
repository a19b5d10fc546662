"""Reports a local run: memberships with cause, steps, injected faults, the result.

Prints for people and writes `timeline.jsonl` for programs. May not: change anything else.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ddpjob_operator.planner import events
from ddpjob_operator.planner.actions import Event
from ddpjob_protocol.control import MembershipRecord, Report, ServiceState
from ddpjob_protocol.membership import MembershipId

STEP_LINES = 10  # a line at every tenth of all steps
STEP_SECONDS = 10.0  # seconds without a line before another step line
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


class Timeline:
    """The timeline of one run."""

    def __init__(self, console: Console, file: Path) -> None:
        self._console = console
        self._file = file
        self._start = time.monotonic()
        self._seen: dict[str, MembershipRecord] = {}
        self._next_step = 0
        self._last_line = 0.0
        self._waiting = ""

    def line(self, kind: str, text: str, **facts: Any) -> None:
        """Print and record a line with time, kind and text."""
        at = time.monotonic() - self._start
        self._last_line = at
        stamp = f"{int(at // 60):02d}:{at % 60:04.1f}"
        style = STYLES.get(kind, "")
        line = Text.assemble((stamp, "dim"), "  ", (f"{kind:<10}", style), text)
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
        self._waiting = report.reason if report.state is ServiceState.WAITING else ""
        self._steps(report)

    def _membership(self, item: MembershipRecord) -> None:
        number = MembershipId.parse(item.id).round
        text = f"membership {number}: world size {item.world_size}; {item.detail}"
        self.line(item.cause, text, id=item.id, world_size=item.world_size)

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
        self.line("step", f"{item.first_step} is the first one, after {seconds:.1f} s")
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
        self.line("step", text, step=report.step, metrics=report.metrics)
