"""The messages of registered workers; each changes the state, decides nothing, and has an effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

from ddpjob_agent.file_sync.decisions.replica import FileInventory
from ddpjob_agent.membership.forming import backoff_after
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.state.registry_state import RegistryState
from ddpjob_protocol.codec import DecodeError, decode
from ddpjob_protocol.messages.agent import Failure, Message
from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_protocol.messages.warnings import (
    AgentWarning,
    WarningReason,
    due_not_called,
    files_not_kept,
    snapshot_degraded,
)
from ddpjob_protocol.parsers.progress import ProgressReport
from ddpjob_protocol.parsers.report_check import check_message

# A smaller difference between the clocks of a node and the service may be the way of a message.
SKEW_SECONDS = 2.0
_Content = Mapping[str, Any]


def on_message(state: RegistryState, worker: str, message: Message, now: float) -> Effect:
    """Apply a message of this worker and return its effect; refuse an odd message.

    Ignore a message of unknown type.
    """
    handler = _HANDLERS.get(message["type"])
    if handler is None:
        return Effect.NOTHING
    try:
        checked = check_message(message)
    except DecodeError as error:
        state.refuse(worker, message["type"], str(error), now)
        return Effect.REPORT
    return handler(state, worker, checked, now)


# --- processes that start and end -----------------------------------------------------------------


def _on_exited(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record the end of this worker's command, with its failure if there is one."""
    if state.view.live:
        return _on_live_exited(state, worker, message, now)
    if not state.is_current(worker, message):
        return Effect.NOTHING
    failure = failure_in(state, message, now)
    if failure is None:
        return Effect.turn_if(state.workers.change(worker, done=True))
    return Effect.turn_if(state.workers.change(worker, exit_at=now, failure=failure))


def _on_live_exited(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    known = state.workers.get(worker)
    if known is None or not message.get("live"):
        return Effect.NOTHING  # of the start before live mode was known
    failure = failure_in(state, message, now)
    if state.view.running and state.is_member(worker):
        exit_at = now if failure else None
        changed = state.workers.change(
            worker, done=failure is None, exit_at=exit_at, failure=failure,
            failed_in=message["membership"],
        )  # fmt: skip
        return Effect.turn_if(changed)
    if failure:  # not a member: the job counts no failure, but the worker backs off
        pause = backoff_after(known.failures + 1, state.view.policy)
        state.workers.back_off(worker, now + pause)
    return Effect.turn_if(bool(failure))


def failure_in(state: RegistryState, message: _Content, now: float) -> Failure | None:
    """Return the failure in a message; its time is corrected if the clock of its node is wrong.

    The first failure is the cause of the others, so times of two nodes are compared.
    """
    if message.get("failure") is None:
        return None
    failure, clock = decode(Failure, message["failure"]), message.get("clock")
    skew = 0.0 if clock is None else state.wall(now) - clock
    if abs(skew) < SKEW_SECONDS:
        return failure
    return dataclasses.replace(failure, at=max(0.0, failure.at + skew))


def _on_bye(state: RegistryState, worker: str, _message: _Content, _now: float) -> Effect:
    """Record that this worker is about to end."""
    return Effect.turn_if(state.workers.change(worker, leaving=True))


def _on_live(state: RegistryState, worker: str, _message: _Content, _now: float) -> Effect:
    """Switch the job to live mode, as a member asks; all processes restart once."""
    if state.view.live or not state.is_member(worker):
        return Effect.NOTHING
    state.update(live=True)
    state.workers.change_all(done=False, exit_at=None, failure=None, ready_at=None)
    return Effect.TURN


def _on_ready(state: RegistryState, worker: str, _message: _Content, now: float) -> Effect:
    """Record that all processes of this worker can join a membership."""
    return Effect.turn_if(state.workers.change(worker, ready_at=now))


def _on_finished(state: RegistryState, worker: str, message: _Content, _now: float) -> Effect:
    """Record that a process of this worker has done all steps, unless in an older membership."""
    is_current = state.is_current(worker, message)
    return Effect.turn_if(is_current and state.workers.change(worker, finished=True))


def _on_broken(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record that this member's processes lost connections in this membership."""
    current = state.current
    is_news = state.view.broken is None and state.is_member(worker)
    if not is_news or current is None or message["membership"] != str(current.id):
        return Effect.NOTHING
    summary = f"{worker} lost its connection to others: {message['why']}"
    failure = Failure(state.wall(now), summary, secondary=True, worker=worker)
    state.update(broken=failure, broken_at=now)
    return Effect.TURN


# --- planned changes ------------------------------------------------------------------------------


def _on_stops(state: RegistryState, worker: str, message: _Content, _now: float) -> Effect:
    """Record that this worker's processes accept a stop step."""
    is_current = state.is_current(worker, message)
    return Effect.turn_if(is_current and state.workers.change(worker, stops=True))


def _on_asks(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record that a rank calls `Snapshots.due`; end the problem if it was the last one."""
    if not state.is_current(worker, message) or message.get("rank") is None:
        return Effect.NOTHING
    reporter = state.askers.on_ask(message["membership"], message["rank"], now)
    if reporter:
        _warn_of_silent_ranks(state, reporter, now)
    return Effect.report_if(bool(reporter))


def _warn_of_silent_ranks(state: RegistryState, reporter: str, now: float) -> None:
    assert state.current is not None
    ranks = state.askers.silent_ranks(state.current.world_size)
    warning = due_not_called(str(state.current.id), ranks)
    state.warnings.add(reporter, warning, state.wall(now))


def _on_promise(state: RegistryState, worker: str, message: _Content, _now: float) -> Effect:
    """Record the last step that this worker's processes begin without a further order."""
    if state.view.asked_at is None:
        return Effect.NOTHING
    return Effect.turn_if(state.workers.change(worker, promise=message["step"]))


def on_stopped(state: RegistryState, worker: str, message: _Content, _now: float) -> Effect:
    """Record that this worker's processes have stopped in a membership."""
    last = state.last_step
    if last is None or message["membership"] != str(last.membership.id):
        return Effect.NOTHING
    is_news = worker not in last.stopped
    last.stopped.add(worker)
    return Effect.turn_if(is_news)


def on_steps_done(state: RegistryState, _worker: str, message: _Content, _now: float) -> Effect:
    """Record the last step of stopped processes in their membership."""
    state.history.on_steps_done(message["membership"], message["step"])
    return Effect.REPORT


def _on_steps_done(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record the last step in a membership, if this worker is or was a member."""
    if not state.is_member(worker) and not state.history.had(worker, message["membership"]):
        return Effect.NOTHING
    return on_steps_done(state, worker, message, now)


def on_inventory(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record the replicas of the script's files that this worker holds."""
    inventory = decode(FileInventory, message)
    state.files.on_inventory(state.view, worker, inventory)
    state.warnings.add(worker, files_not_kept(inventory.problem), state.wall(now))
    return Effect.TURN


# --- progress and trouble -------------------------------------------------------------------------


def _on_progress(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record a progress report of this worker's processes."""
    if not state.is_current(worker, message):
        return Effect.NOTHING
    before, report = state.history.snapshot_step, message["report"]
    on_progress_report(state, worker, report, now)
    _on_step_facts(state, worker, message, now)
    if report.event is ProgressEvent.STEP:
        state.stalls.on_step(report.step, now, state.wall(now))
        state.signs.on_report(worker, report.step, now)
        if state.askers.on_step(message["membership"], worker, report.step, now):
            _warn_of_silent_ranks(state, worker, now)
    if state.history.snapshot_step == before:
        return Effect.REPORT
    state.update(saved_at=now)
    return Effect.TURN


def on_progress_report(
    state: RegistryState, worker: str, report: ProgressReport, now: float
) -> None:
    """Record a progress report of this worker's processes."""
    state.history.on_progress(report, state.wall(now))
    if report.event is ProgressEvent.SAVED:
        state.warnings.add(worker, snapshot_degraded(report.problem), state.wall(now))
        if report.storages == 1:  # this worker now saves for all
            state.warnings.end_others(WarningReason.SNAPSHOT_DEGRADED.value, worker)


def _on_beat(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record the heartbeats of this worker's processes, each with its membership."""
    positions = message.get("processes") or ()
    current = [each for each in positions if state.is_in(worker, each.membership)]
    state.stalls.on_heartbeat(worker, current, now)
    _on_step_facts(state, worker, message, now)
    return Effect.NOTHING


def _on_step_facts(state: RegistryState, worker: str, message: _Content, now: float) -> None:
    """Record the step that this worker's processes had done when it sent the message."""
    if message.get("step") is not None:
        state.signs.on_step(worker, message["step"], message.get("step_age") or 0.0, now)


def _on_stacks(state: RegistryState, worker: str, message: _Content, _now: float) -> Effect:
    """Record the stacks of this worker's processes, if the orders ask for them."""
    if state.hang.asked_at is None or not state.is_current(worker, message):
        return Effect.NOTHING
    state.hang.stacks[worker] = message["text"]
    return Effect.TURN


def _on_warning(state: RegistryState, worker: str, message: _Content, now: float) -> Effect:
    """Record a problem of this worker, unless it ended with an earlier membership."""
    warning = decode(AgentWarning, message)
    if warning.membership and not state.is_in(worker, warning.membership):
        return Effect.NOTHING
    state.warnings.add(worker, warning, state.wall(now))
    return Effect.REPORT


_HANDLERS: dict[str, Callable[[RegistryState, str, _Content, float], Effect]] = {
    "exited": _on_exited,
    "bye": _on_bye,
    "live": _on_live,
    "ready": _on_ready,
    "finished": _on_finished,
    "broken": _on_broken,
    "asks": _on_asks,
    "stops": _on_stops,
    "promise": _on_promise,
    "stopped": on_stopped,
    "steps_done": _on_steps_done,
    "files": on_inventory,
    "report": _on_progress,
    "beat": _on_beat,
    "warning": _on_warning,
    "stacks": _on_stacks,
}
