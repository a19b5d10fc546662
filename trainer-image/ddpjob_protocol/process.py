"""What an agent and the training processes of its worker send each other."""

from __future__ import annotations

import dataclasses
import enum

from ddpjob_protocol.membership import Membership


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What an agent tells its live processes, one JSON line each; the newest one counts.

    They answer with `Answer`s. A membership of None: wait in memory for the next one.
    """

    membership: Membership | None = None  # to be in
    first_rank: int = 0  # in it, of this worker's processes
    leave: bool = False  # this worker goes: end after step `after`, or at once
    last_step: int | None = None
    save: bool = False  # nobody goes on: the first rank saves the state before it waits or leaves
    stop_requested: bool = False  # promise a step, and begin no later one before the next word


LEAVE_STATE = {"leave_state": True}  # said instead of a Place to a process that is given up


class ProcessMessage(str, enum.Enum):
    """What a live process says to its agent: {"answer": …, "local_rank": …} and what is named."""

    LIVE = "live"  # it was started for one membership only, and asks to be started to stay
    HELLO = "hello"  # ready to be in a membership
    PROMISE = "promise"  # "step": the last one that it begins before the next word
    BROKEN = "broken"  # "membership", "why": its connections broke
    AT = "at"  # "where": how far it is on its way out of a broken membership
    ARRIVED = "arrived"  # "membership": out of every other one, about to be in this one, if any
    ENTERED = "entered"  # "membership": in it
    STOPS = "stops"  # "membership": started for that one; can be told after which step to stop
    STOPPED = "stopped"  # it has stopped there, and its state is saved
    FINISHED = "finished"  # all steps are done; it changes no more
    LEFT = "left"  # "step": asked to LEAVE_STATE, it did; None: it could not


class ProgressEvent(str, enum.Enum):
    """What the user's processes tell their agent: one JSON datagram each, with their membership."""

    STEP = "step"  # {"event": "step", "step": 12, "total": 900, "metrics": {"loss": 0.3}}
    # {"event": "saved", "step": 12}; where directories are not shared also "place": 3, "places": 4;
    # "skipped": 2, if so many were left out since the one before; "problem": a text, as long as
    # something makes saving worse than it could be
    SAVED = "saved"
    # {"event": "resumed", "step": 12}; 0 when there was no snapshot. "loaded": true, if it is not
    # from memory that training goes on.
    RESUMED = "resumed"
    # Of every process, once a second: {"event": "alive", "rank": 3, "step": 12, "where": "a.py:7"}
    ALIVE = "alive"
