"""The settings of one agent, fixed at its start."""

from __future__ import annotations

from typing import NamedTuple

from ddpjob_protocol.environment import Launcher

LEAVE_SECONDS = 10.0  # between SIGTERM and SIGKILL, when the pod is deleted
RESERVE_SECONDS = 5.0  # of the pod's grace period, kept for the agent's own end


class AgentSettings(NamedTuple):
    """The settings of one agent."""

    worker: str
    processes: int
    host: str
    port: int
    token: str
    address: str
    orphan_seconds: float
    grace_seconds: float
    fork_server_enabled: bool
    termination_log: str
    program: tuple[str, ...]  # command that starts one of the agent's roles
    fork_server: tuple[int, int] | None = None  # descriptor and process id of a running one
    launcher: Launcher = Launcher.TORCHRUN
    files: tuple[str, ...] = ()  # paths that an unchanged script saves to
    snapshot_folder: str = ""
    output: str = ""  # Unix socket of the screen of a local run
