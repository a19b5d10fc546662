"""The message about a hang: its start, the ranks that others wait for, and the remedy.

The rendezvous service detects the hang. The message does not change while the hang lasts.
May not: decide anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from ddpjob_protocol.messages.control import RankGroup, Stall
from ddpjob_protocol.text import some

MAX_POINTS = 4  # rank groups in a message; the others are counted
MAX_NAMES = 3  # ranks or workers of a group; the others are counted
REMEDY = (
    "read their logs, or their stacks with `py-spy dump`. An evaluation or a long save may be the"
    " cause; the job restarts nothing by itself (failurePolicy.onHang)"
)
END_REMEDY = (
    "read their logs, or their stacks with `py-spy dump`. They may wait for ranks that have ended: give"
    " each rank the same number of steps, and end all of them. They may also evaluate or upload. The"
    " job restarts nothing at its end; if they hang, delete the pods of these workers"
)
RESTARTS = "the job restarts once the stacks of its processes are collected (failurePolicy.onHang)"


def describe_stall(stall: Stall, *, restarts: bool = False) -> str:
    """Return the message about a stall; `restarts`: the job restarts by itself."""
    since = datetime.fromtimestamp(stall.since, UTC)
    head = f"no step since {since:%Y-%m-%d %H:%M:%S} UTC, when step {stall.step} was done"
    if stall.left:
        return f"{head}; {_course_of_end(stall)}; {_subject(stall.groups)}; {END_REMEDY}"
    usual = (
        ""
        if stall.usual_step_seconds is None
        else f"; one usually takes {_seconds(stall.usual_step_seconds)}"
    )
    return f"{head}{usual}; {_subject(stall.groups)}; {RESTARTS if restarts else REMEDY}"


def _course_of_end(stall: Stall) -> str:
    ended = f"{some(stall.ended, MAX_NAMES)} ended with exit code 0"
    return (
        f"{ended if stall.ended else 'all are done'}, but {some(stall.left, MAX_NAMES)} did not end"
    )


def _subject(standings: Sequence[RankGroup]) -> str:
    lagging = [each for each in standings if each.behind]
    if not standings:
        return "the processes do not report their step"
    texts = [_point(each) for each in lagging or standings]
    rest = len(texts) - MAX_POINTS
    text = "; ".join(texts[:MAX_POINTS] + ([f"and {rest} more such groups"] if rest > 0 else []))
    if lagging:
        return text
    known = all(each.step is not None for each in standings)
    words = (
        "no rank is behind, all wait for each other" if known else "no rank is seen to be behind"
    )
    return f"{words}: {text}"


def _point(standing: RankGroup) -> str:
    plural = "s" if len(standing.ranks) > 1 else ""
    ranks = f"rank{plural} {some(standing.ranks, MAX_NAMES)}"
    who = f"{ranks} ({some(standing.workers, MAX_NAMES)})" if standing.workers else ranks
    at = f", at {standing.where}" if standing.where else ""
    if standing.step is None:
        return f"{who}: not known"
    if standing.silent:
        words = "no sign of life: stopped, or stuck outside of Python"
        return f"{who}: {words}, after step {standing.step}{at}"
    if standing.behind:
        return f"{who}: behind, after step {standing.step}{at}"
    return f"{who}{at}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
