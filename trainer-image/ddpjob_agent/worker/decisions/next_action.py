"""The next action of a worker's supervisor: a function of what it sees, and of the time.

If another run is wanted, it prepares the stop, awaits the last step, and stops. If a run is wanted,
it awaits the saves of others, and starts. After SIGTERM it stops, hands replicas over, and ends.

May not: wait, or change anything; `supervision` acts.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpjob_agent.worker.decisions.orders import Run


class Action(enum.Enum):
    """An action of the supervisor, after which it looks again."""

    WAIT = "wait for a change"
    PREPARE_STOP = "look at once whether the processes write, and begin their time"
    AWAIT_LAST_STEP = "let the processes do their last step and their saves"
    CUT_OFF = "stop the processes in their last step, because their time is over"
    STOP = "end the processes"
    AWAIT_SAVES = "wait until other workers have saved what the next processes load"
    FAIL = "report that the replica of the run could not be installed"
    START = "start the wanted run"
    HAND_OVER = "let other workers copy the replicas that only this worker holds"
    END = "end the supervision"


@dataclasses.dataclass(frozen=True)
class Steps:
    """The last step of processes, and its saves. Times are monotonic seconds."""

    accepts_stops: bool = False  # the processes stop after a step that they agree on
    has_last_step: bool = False  # they know that step
    has_stopped: bool = False  # they have stopped after it
    until: float | None = None  # end of the time for it; None: the time has not begun
    others_save: bool = False  # what the next processes load
    others_until: float | None = None  # end of the time for that; None: it has not begun


@dataclasses.dataclass(frozen=True)
class View:
    """All that the supervisor sees. Times are its monotonic seconds."""

    wanted: Run | None = None
    started: Run | None = None  # the run whose processes may exist
    has_ended: bool = False  # its command
    is_over: bool = False  # the service has ended the job
    is_leaving: bool = False  # after SIGTERM
    has_left: bool = False  # the processes were stopped after SIGTERM
    is_planned: bool = False  # the processes are stopped although they could continue
    steps: Steps = Steps()
    is_writing: bool = False  # files of an unchanged script
    may_start: bool = True  # all members have installed the wanted replica
    cannot_install: bool = False
    others_copy: bool = False  # replicas of this worker
    copies_until: float = 0.0


def next_action(view: View, now: float) -> Action:
    """Return what the supervisor does next."""
    if view.started is not None and (view.is_leaving or view.started is not view.wanted):
        return _next_of_stop(view, now)
    if view.is_leaving:
        return _next_of_farewell(view, now)
    if view.is_over:
        return Action.END
    if view.started is not None or view.wanted is None:
        return Action.WAIT
    return _next_of_start(view, now)


def _next_of_farewell(view: View, now: float) -> Action:
    if not view.has_left:
        return Action.STOP  # processes may have outlived their command
    must_wait = view.others_copy and not view.is_over and now <= view.copies_until
    return Action.HAND_OVER if must_wait else Action.END


def _next_of_start(view: View, now: float) -> Action:
    until = view.steps.others_until
    if view.steps.others_save and (until is None or now < until):
        return Action.AWAIT_SAVES
    if not view.may_start:
        return Action.WAIT
    return Action.FAIL if view.cannot_install else Action.START


def _next_of_stop(view: View, now: float) -> Action:
    if view.steps.until is None:
        return Action.PREPARE_STOP
    if not _is_busy(view):
        return Action.STOP
    return Action.AWAIT_LAST_STEP if now <= view.steps.until else Action.CUT_OFF


def _is_busy(view: View) -> bool:
    """Return whether the processes have something to do before they end."""
    run = view.started
    if run is None or view.has_ended:
        return False
    if run.live:
        return view.is_leaving
    if view.steps.accepts_stops:
        awaits_word = view.is_leaving and view.wanted is run
        return (awaits_word or view.steps.has_last_step) and not view.steps.has_stopped
    return view.is_planned and view.is_writing
