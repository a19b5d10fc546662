"""The restart of a job that hangs: first the stacks of all its processes, then a failure.

The orders ask the agents for stacks while a hang with the policy Restart is known. Once all
members have answered, or COLLECT_SECONDS are over, the membership policy gets the hang as a failure.
If a step is done before, nothing happens.

At the end of the training nothing starts again: a command that has ended with 0 would run again, and
the others may work for as long as an upload takes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ddpjob_protocol.failures.failure_rules import FailureReason
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.warnings import hang_stacks
from ddpjob_protocol.text import shorten

if TYPE_CHECKING:
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.messages.control import Stall

COLLECT_SECONDS = 10.0
MAX_WARNINGS = 3  # workers whose stacks become a warning
MAX_STACKS = 1000  # characters of the stacks of one worker, in its warning
RESTART = "Restart"  # of `Policy.on_hang`


@dataclasses.dataclass
class HangRestart:
    """The collection of stacks in the current membership."""

    asked_at: float | None = None  # since when the orders ask for stacks
    stacks: dict[str, str] = dataclasses.field(default_factory=dict)  # by worker

    def reset(self) -> None:
        """Stop to ask."""
        self.asked_at = None
        self.stacks.clear()


def restart_if_hung(state: RegistryState, now: float) -> bool:
    """Ask for stacks, or give the hang to the membership policy; return whether that is new."""
    hang, stall, current = state.hang, state.stalls.stall, state.current
    if state.view.policy.on_hang != RESTART or stall is None or stall.left or current is None:
        hang.reset()
        state.update(hang=None, hung=())
        return False
    if state.view.hang is not None:
        return False
    if hang.asked_at is None:
        hang.asked_at = now
    members = [member.worker for member in current.members]
    if not hang.stacks.keys() >= {*members} and now < hang.asked_at + COLLECT_SECONDS:
        return False
    hung = _laggards(stall) or members
    for worker in hung[:MAX_WARNINGS]:
        text = shorten(hang.stacks.get(worker, ""), MAX_STACKS)
        state.warnings.add(worker, hang_stacks(str(current.id), text), state.wall(now))
    failure = _failure(stall, hung, hang.stacks, state.wall(now))
    state.update(hang=failure, hung=tuple(hung))
    return True


def _laggards(stall: Stall) -> list[str]:
    """Return the workers with ranks that the others wait for."""
    found = (worker for group in stall.groups if group.behind for worker in group.workers)
    return [*dict.fromkeys(found)]


def _failure(stall: Stall, hung: list[str], stacks: dict[str, str], wall: float) -> Failure:
    seconds = max(0.0, wall - stall.since)
    summary = f"no step for {seconds:.0f} s after step {stall.step} (failurePolicy.onHang: Restart)"
    first = next((group for group in stall.groups if group.behind and group.workers), None)
    if first is not None:
        where = f" at {first.where}" if first.where else ""
        summary += f"; rank {first.ranks[0]} ({first.workers[0]}) is behind{where}"
    return Failure(
        at=wall,
        summary=shorten(summary, 500),
        traceback=stacks.get(hung[0], ""),
        rank=first.ranks[0] if first else None,
        reason=FailureReason.HANG.value,
        worker=hung[0],
    )
