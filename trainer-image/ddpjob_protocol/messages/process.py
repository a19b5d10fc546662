"""Messages between an agent and the training processes of its worker."""

from __future__ import annotations

import dataclasses
import enum

from ddpjob_protocol.messages.membership import Membership


@dataclasses.dataclass(frozen=True)
class Assignment:
    """An agent's message to its live processes, one JSON line; the newest one counts.

    Processes answer with `ProcessMessage`s. If the membership is None, the processes wait in memory
    for the next one.
    """

    membership: Membership | None = None  # to join
    first_rank: int = 0  # first rank of this worker's processes
    leave: bool = False  # this worker leaves: end after `last_step`, or at once
    last_step: int | None = None
    save: bool = False  # training halts: the first rank saves the state before it waits or leaves
    stop_requested: bool = False  # promise a step; begin no later step before the next assignment


STACK_SIGNAL = 50  # a real-time signal: scripts have SIGUSR1 and SIGUSR2 for themselves
STACK_FILE = "stacks"  # with the process id, beside the steps file
DUMP_STATE = {
    "dump_state": True
}  # sent instead of an Assignment: write the state to the node's disk


class ProcessMessage(str, enum.Enum):
    """A live process's message to its agent: {"answer": …, "local_rank": …} and more fields."""

    LIVE = "live"  # asks for a restart in live mode
    HELLO = "hello"  # ready to join a membership
    PROMISE = "promise"  # "step": the last one that it begins before the next assignment
    BROKEN = "broken"  # "membership", "why": its connections broke
    # Once a second, on its way out of a broken membership. "where": identifies the current call;
    # "line": of the script; "free": the main thread is in no step and in no collective.
    AT = "at"
    ARRIVED = "arrived"  # "membership": has left all others, joins this one next, if any
    ENTERED = "entered"  # "membership": has joined it
    STOPS = "stops"  # "membership", "rank": its own; accepts a stop step; no rank: not known
    STOPPED = "stopped"  # stopped at the stop step, and its state is saved
    FINISHED = "finished"  # "membership": has done its last step there; joins no more
    LEFT = "left"  # "step": of the state it left after DUMP_STATE; None: it could not


class ProgressEvent(str, enum.Enum):
    """A report of a user's process to its agent: one JSON datagram, with its membership."""

    STEP = "step"  # {"event": "step", "step": 12, "total": 900, "metrics": {"loss": 0.3}}
    # {"event": "saved", "step": 12}; where directories are not shared also "storage": 3, "storages": 4;
    # "skipped": 2, if two snapshots were skipped since the last one; "problem": a text, while
    # saving is impaired
    SAVED = "saved"
    # {"event": "resumed", "step": 12}; 0 when there was no snapshot. "loaded": true, if
    # training resumes from a snapshot and not from memory.
    RESUMED = "resumed"
    # From every process, once a second: {"event": "alive", "rank": 3, "step": 12, "where": "a.py:7"}
    ALIVE = "alive"
