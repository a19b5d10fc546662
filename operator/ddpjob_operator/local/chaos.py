"""Parses `--chaos kill=30%,join=60%` into events, each with a check whether it is due.

May not: execute events.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from ddpjob_protocol.messages.control import Report

ACTIONS = {
    "kill": "SIGKILL every process of a node and remove the node",
    "join": "a new node",
    "drain": "SIGTERM to the worker of a node, which accepts no further worker",
    "freeze": "SIGSTOP every process of a node",
    "thaw": "SIGCONT to a frozen node",
    "agent": "SIGKILL the agent of a worker",
    "process": "SIGKILL one training process",
    "rendezvous": "SIGKILL the rendezvous service",
}
GRAMMAR = "ACTION[:NODE]=WHEN, for example kill=30%,join=60% or kill:node-0=step120,join=90s"
SILENT_SECONDS = 30.0  # without a step; slow imports and downloads take about as long
_EVENT = re.compile(r"(?P<action>[a-z]+)(?::(?P<node>[\w.-]+))?=(?P<when>[\w.%]+)")
_WHEN = re.compile(r"(?P<percent>\d+(\.\d+)?)%|step(?P<step>\d+)|(?P<seconds>\d+(\.\d+)?)s")


class ChaosError(ValueError):
    """The text does not follow the grammar."""


@dataclasses.dataclass(frozen=True)
class ChaosEvent:
    """An event, due at a step, a share of all steps, or seconds after the first membership."""

    action: str
    node: str | None
    when: str
    is_due: Callable[[Report, float], bool] = dataclasses.field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.at(self.when)

    def at(self, when: str) -> str:
        """Return the text of this event at another time."""
        return f"{self.action}{f':{self.node}' if self.node else ''}={when}"


def parse_chaos(text: str) -> list[ChaosEvent]:
    """Return the events of `text` in order; raise ChaosError if the text is malformed."""
    return [_parse(part.strip()) for part in text.split(",") if part.strip()]


def explain_waiting(event: ChaosEvent, report: Report, elapsed: float) -> str:
    """Return why an event may never be due, as far as the reports show; empty without a reason.

    `elapsed` is the time since the first membership, in seconds.
    """
    if event.when.endswith("s"):
        return ""
    if report.step is None:
        if elapsed < SILENT_SECONDS:
            return ""
        return (
            f"{event} needs a script that reports its steps, and no step was reported for"
            f" {SILENT_SECONDS:.0f} s; with another script, use {event.at('20s')}"
        )
    if event.when.endswith("%") and report.total_steps is None:
        return (
            f"{event} needs the number of all steps, and the script reports none; call step_done(step,"
            f" steps), or use {event.at('step100')}"
        )
    return ""


def _parse(part: str) -> ChaosEvent:
    match = _EVENT.fullmatch(part)
    if match is None:
        raise ChaosError(f"--chaos: cannot read '{part}'; write {GRAMMAR}")
    action, node, when = match["action"], match["node"], match["when"]
    if action not in ACTIONS:
        raise ChaosError(f"--chaos: no action '{action}'; choose one of {', '.join(ACTIONS)}")
    time = _WHEN.fullmatch(when)
    if time is None:
        raise ChaosError(f"--chaos: cannot read the time '{when}'; write 30%, step120 or 90s")
    if time["percent"] and float(time["percent"]) > 100:
        raise ChaosError(f"--chaos: '{when}' is above 100%; write at most 100%")
    return ChaosEvent(action, node, when, _due(time))


def _due(time: re.Match[str]) -> Callable[[Report, float], bool]:
    if time["seconds"]:
        return lambda _, elapsed: elapsed >= float(time["seconds"])
    if time["step"]:
        return lambda report, _: (report.step or 0) >= int(time["step"])
    share = float(time["percent"]) / 100
    return lambda report, _: bool(
        report.total_steps and (report.step or 0) >= share * report.total_steps
    )
