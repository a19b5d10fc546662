"""Builders for the inventories of agents."""

from __future__ import annotations

from ddpjob_agent.file_sync.decisions.replica import FileInventory, Replica
from ddpjob_protocol.messages.membership import Member

A, B, C = (Member(name, f"{name}-first", "127.0.0.1", 1) for name in "abc")


def copy(membership: str, seconds: float = 0.0, digest: str = "") -> Replica:
    return Replica(membership, seconds, digest or f"{membership}/{seconds}", 10)


def has(
    *copies: Replica, installed: str | None = "", port: int = 1, begun: bool = False
) -> FileInventory:
    return FileInventory("", copies, installed, begun, port)


OLD, NEW = copy("1.1.1", 10, "old"), copy("1.1.1", 20, "new")
