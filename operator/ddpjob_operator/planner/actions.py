"""The actions of a plan. Every action is idempotent: a second execution changes nothing.

May not: execute anything.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CreateNetworkPolicy:
    """Let only the pods of the job, and the operator, connect to its pods."""


@dataclasses.dataclass(frozen=True)
class CreateService:
    """Create the Service through which workers find the rendezvous pod."""


@dataclasses.dataclass(frozen=True)
class CreateRendezvous:
    """Start the rendezvous service of this term."""

    name: str
    term: int
    avoid: tuple[str, ...] = ()  # nodes


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
    avoid: tuple[str, ...] = ()  # nodes


@dataclasses.dataclass(frozen=True)
class DeleteWorker:
    """Stop a worker; its grace period applies."""

    name: str


@dataclasses.dataclass(frozen=True)
class DeleteJob:
    """Delete the job itself, unless it has changed since the observation."""


Action = (
    CreateNetworkPolicy
    | CreateService
    | CreateRendezvous
    | DeleteRendezvous
    | CreateWorker
    | DeleteWorker
    | DeleteJob
)


@dataclasses.dataclass(frozen=True)
class Event:
    """A transition, reported once, after the pass has written the new status."""

    reason: str
    message: str
    warning: bool = False
