"""The report for the operator, from the state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_protocol.messages.control import Report

if TYPE_CHECKING:
    from ddpjob_agent.registry.state.registry_state import RegistryState


def build_report(state: RegistryState, version: int) -> Report:
    """Return the report for the operator."""
    view, history = state.view, state.history
    members = view.current.members if view.current else ()
    connected = (
        w.member.worker
        for w in state.workers.rows()
        if w.closed_at is None and w.member.worker not in state.silent
    )
    return Report(
        version=version,
        term=view.term,
        boot=view.boot,
        state=state.phase,
        reason=state.reason,
        workers=tuple(sorted(connected)),
        membership=view.current,
        failures=view.failures,
        failure_times=state.failure_times,
        losses=view.current.losses if view.current else 0,
        step=history.step,
        step_at=history.step_at,
        steps_per_second=history.steps_per_second,
        total_steps=history.total_steps,
        metrics=dict(history.metrics),
        snapshot_step=history.snapshot_step,
        failure=state.failure,
        process_failures=state.process_failures,
        memberships=tuple(history.records),
        live=view.live,
        stall=state.stalls.stall,
        warnings=state.warnings.warnings(),
        repeated_steps=history.repeated_steps,
        snapshots_skipped=history.snapshots_skipped,
        files=state.files.report(),
        ranks=state.ranks.assigned(member.worker for member in members),
    )
