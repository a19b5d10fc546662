"""The state of an agent, and the effects of an order of the service, as data and functions.

    run M     run the command for M; in live mode: run live processes, and assign M to them
    stay      run live processes; they wait in memory, or leave
    halt      run nothing
    finish    run nothing, and end the agent

The agent obeys only the highest membership that it has seen. The service alone decides which
workers are lost and what a failure means.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.messages.agent import PROTOCOL
from ddpjob_protocol.messages.membership import Cause, Member, Membership
from ddpjob_protocol.messages.process import Assignment

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Failure, Message

PLANNED = (Cause.JOINED, Cause.LEFT)
PLANNED_STOP_SECONDS = 3.0  # between SIGTERM and SIGKILL, for healthy processes


@dataclasses.dataclass(eq=False)
class Run:
    """One start of the command: for one membership, or for live mode (None)."""

    membership: Membership | None
    port: int | None = None  # free port at the first member
    inherits: bool = False  # True to load the state that stuck processes left
    ended_under: tuple[str, str] | None = None  # the order under which the run ended

    @property
    def live(self) -> bool:
        """True if the processes stay when the membership changes."""
        return self.membership is None

    @property
    def is_first(self) -> bool:
        """True if no membership of the job has run before."""
        return self.membership is not None and self.membership.cause is Cause.STARTED


@dataclasses.dataclass
class AgentState:
    """The state of one agent. Times are the agent's monotonic seconds."""

    me: Member
    membership: Membership | None = None  # the highest membership seen
    seal: str = ""  # of that membership, by the service; the agent cannot make or read it
    order: tuple[str, str] = ("", "")  # type and membership of the newest order
    wanted: Run | None = None
    steps_done: Message | None = None  # last step of the processes that ended last
    done: bool = False
    failure: Failure | None = None
    finish: Message | None = None  # the order to end
    halted_by_plan: bool = False
    left_at: float | None = None  # time of SIGTERM

    @property
    def is_leaving(self) -> bool:
        """True after SIGTERM: the pod ends."""
        return self.left_at is not None

    @property
    def is_live(self) -> bool:
        """True if the agent wants live processes."""
        return self.wanted is not None and self.wanted.live

    @property
    def stops_by_plan(self) -> bool:
        """True if the processes are stopped although they could continue."""
        if self.is_leaving or self.wanted is None:
            return self.is_leaving or self.halted_by_plan
        return _is_planned(self.wanted.membership)

    @property
    def grace_seconds(self) -> float:
        """Seconds that the old processes have to end before the wanted run starts."""
        wanted = self.wanted.membership if self.wanted else None
        return PLANNED_STOP_SECONDS if _is_planned(wanted) else 0


class Effects(NamedTuple):
    """The actions that follow from an order; none by default."""

    check: Membership | None = None  # its connections to check
    store: str = ""  # the membership whose store gets the c10d requests
    assignment: Assignment | None = None  # of live processes
    syncs_files: bool = False  # the order instructs about the script's files
    sets_last_step: bool = False  # of processes that run for one membership
    stacks: str = ""


def follow(state: AgentState, order: Message, *, finished: bool) -> Effects:
    """Change the state by an order and return its effects.

    `finished` is True if the live processes have done all their steps.
    """
    kind = order["type"]
    if kind == "run":
        return _enter(state, decode(Membership, order["membership"]), order, finished=finished)
    if kind == "stay":
        state.order = ("stay", "")
        _want_live(state)
        leave, last_step, save = order["leave"], order["after"], order["save"]
        return Effects(assignment=Assignment(leave=leave, last_step=last_step, save=save))
    if kind == "halt":
        state.order = ("halt", "")
        state.wanted = None
        state.halted_by_plan = order.get("planned", False)
        return Effects(syncs_files=True, sets_last_step=True)
    if kind == "finish":
        state.finish, state.wanted = order, None
    return Effects()


def _enter(state: AgentState, new: Membership, order: Message, *, finished: bool) -> Effects:
    held = state.membership
    if state.me not in new.members or (held and new.id < held.id):
        return Effects()  # the order is for an earlier incarnation, or superseded
    is_higher = held is None or new.id > held.id
    state.seal = order.get("seal", "")
    if is_higher:
        state.membership = new
        state.done, state.failure = False, None
        if not order["live"]:
            state.wanted = Run(new, order.get("port"))
        elif finished:  # the processes change no more; new ones load the last save
            state.wanted = Run(None)
    check = new if is_higher else None
    stacks = str(new.id) if order.get("stacks") else ""
    if not order["live"]:
        return Effects(check, syncs_files=True, sets_last_step=True, stacks=stacks)
    state.order = ("run", str(new.id))
    _want_live(state)
    before = new.members[: new.members.index(state.me)]
    first_rank = sum(member.processes for member in before)
    assignment = Assignment(new, first_rank, stop_requested=order["asked"])
    return Effects(check, str(new.id), assignment, syncs_files=True, stacks=stacks)


def _want_live(state: AgentState) -> None:
    """Want live processes; start them again if they ended under an earlier order."""
    wanted = state.wanted
    if wanted is None or not wanted.live or wanted.ended_under not in (None, state.order):
        state.wanted = Run(None)
        state.done, state.failure = False, None


def _is_planned(membership: Membership | None) -> bool:
    return membership is not None and membership.cause in PLANNED


def on_exit(state: AgentState, run: Run, failure: Failure | None) -> None:
    """Record that a run has ended; without a failure, it has succeeded."""
    if failure is None:
        state.done = True
    else:
        state.failure = failure
    run.ended_under = state.order


def on_service_lost(state: AgentState, incarnation: str) -> None:
    """Want no processes until the service gives an order again."""
    if state.is_live:
        replace_incarnation(state, incarnation)
    state.wanted = None
    state.halted_by_plan = False


def replace_incarnation(state: AgentState, incarnation: str) -> None:
    """Become a new worker to the service, one without processes."""
    state.me = dataclasses.replace(state.me, incarnation=incarnation)
    state.wanted = None


def hello_message(state: AgentState) -> Message:
    """Return what the agent reports of itself when it registers."""
    return {
        "protocol": PROTOCOL,
        "member": encode(state.me),
        "membership": encode(state.membership),
        "seal": state.seal,
        "running": state.wanted is not None,
        "live": state.is_live,
        "steps_done": state.steps_done,
        "done": state.done,
        "leaving": state.is_leaving,
        "failure": encode(state.failure),
    }
