"""What a plan may ask for. Each action may be executed twice: the second time changes nothing.

May not: execute anything.
"""

from __future__ import annotations

import dataclasses

from ddpjob_protocol.control import Expectation


@dataclasses.dataclass(frozen=True)
class CreateService:
    """Make the name that leads workers to the rendezvous service."""


@dataclasses.dataclass(frozen=True)
class CreateRendezvous:
    """Start the rendezvous service of this term."""

    name: str
    term: int


@dataclasses.dataclass(frozen=True)
class DeleteRendezvous:
    """Stop the rendezvous service of this term."""

    term: int


@dataclasses.dataclass(frozen=True)
class CreateWorker:
    """Start a worker."""

    name: str
    group: str
    index: int
    incarnation: int


@dataclasses.dataclass(frozen=True)
class DeleteWorker:
    """Stop a worker, with the grace it is entitled to."""

    name: str


@dataclasses.dataclass(frozen=True)
class Expect:
    """Tell the rendezvous service whom to wait for; planned in every pass, equal or not."""

    expectation: Expectation


Action = CreateService | CreateRendezvous | DeleteRendezvous | CreateWorker | DeleteWorker | Expect


@dataclasses.dataclass(frozen=True)
class Event:
    """A transition, told once, after the status that shows it is written."""

    reason: str
    message: str
    warning: bool = False
