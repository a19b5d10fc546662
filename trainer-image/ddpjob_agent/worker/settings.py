"""The settings of one agent, read from its environment once, at its start."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol import environment as env
from ddpjob_protocol.addresses import split_address
from ddpjob_protocol.environment import Launcher

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddpjob_protocol.messages.membership import Membership

LEAVE_SECONDS = 10.0  # between SIGTERM and SIGKILL, when the pod is deleted
RESERVE_SECONDS = 5.0  # of the pod's grace period, kept for the agent's own end


class UsageError(Exception):
    """A variable or flag is missing or wrong; the message names it and the remedy."""


class AgentSettings(NamedTuple):
    """The settings of one agent."""

    worker: str
    processes: int
    host: str
    port: int
    keys_file: str
    address: str
    orphan_seconds: float
    stuck_seconds: float
    grace_seconds: float
    fork_server_enabled: bool
    termination_log: str
    program: tuple[str, ...]  # command that starts one of the agent's roles
    fork_server: tuple[int, int] | None = None  # descriptor and process id of a running one
    launcher: Launcher = Launcher.TORCHRUN
    files: tuple[str, ...] = ()  # paths that an unchanged script saves to
    snapshot_folder: str = ""
    output: str = ""  # Unix socket of the screen of a local run

    @property
    def last_step_seconds(self) -> float:
        """Time for the agreed last step and its save, within the grace period."""
        return max(0.0, self.grace_seconds - LEAVE_SECONDS - RESERVE_SECONDS)

    def worker_of(self, membership: Membership | None, rank: int | None) -> str:
        """Return the worker with a rank; only mpirun starts the processes of other workers."""
        if self.launcher is Launcher.MPI and membership is not None and rank is not None:
            return membership.worker_of(rank) or self.worker
        return self.worker


def read_settings(variables: Mapping[str, str]) -> AgentSettings:
    """Return the settings in these variables. Raise UsageError."""
    host, port = _address(variables, env.ENV_SERVICE)
    return AgentSettings(
        worker=required(variables, env.ENV_WORKER),
        processes=_positive(variables, env.ENV_PROCESSES),
        host=host,
        port=port,
        keys_file=required(variables, env.ENV_KEYS),
        address=required(variables, env.ENV_ADDRESS),
        orphan_seconds=_seconds(variables, env.ENV_ORPHAN_SECONDS, 60),
        stuck_seconds=_seconds(variables, env.ENV_STUCK_SECONDS, env.STUCK_SECONDS),
        grace_seconds=_seconds(variables, env.ENV_GRACE_SECONDS, env.GRACE_SECONDS),
        fork_server_enabled=variables.get(env.ENV_WARM_START, "1") != "0",
        termination_log=variables.get(env.ENV_TERMINATION_LOG, "/dev/termination-log"),
        program=(sys.executable, os.path.abspath(sys.argv[0])),
        fork_server=_pair(variables, env.ENV_WARM_PARENT),
        launcher=_launcher(variables),
        files=_texts(variables, env.ENV_SNAPSHOT_FILES),
        snapshot_folder=variables.get(env.ENV_SNAPSHOT_DIR, ""),
        output=variables.get(env.ENV_OUTPUT, ""),
    )


def required(variables: Mapping[str, str], name: str) -> str:
    """Return a variable. Raise UsageError if it is not set."""
    value = variables.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set; the operator sets it in every pod of a job")
    return value


def memory_bytes(variables: Mapping[str, str]) -> int | None:
    """Return the memory that the service may take, if its creator has set it. Raise UsageError."""
    known = variables.get(env.ENV_MEMORY_BYTES)
    return _positive(variables, env.ENV_MEMORY_BYTES) if known else None


def _address(variables: Mapping[str, str], name: str) -> tuple[str, int]:
    try:
        return split_address(required(variables, name))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _positive(variables: Mapping[str, str], name: str) -> int:
    number = _number(name, required(variables, name))
    if number < 1:
        raise UsageError(f"{name} must be at least 1, not {number}")
    return number


def _seconds(variables: Mapping[str, str], name: str, default: float) -> float:
    value = variables.get(name, str(default))
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{name} must hold seconds, not {value!r}") from None


def _launcher(variables: Mapping[str, str]) -> Launcher:
    text = variables.get(env.ENV_LAUNCHER) or Launcher.TORCHRUN.value
    try:
        return Launcher(text)
    except ValueError:
        known = " or ".join(map(str, Launcher))
        raise UsageError(f"{env.ENV_LAUNCHER} must be {known}, not {text!r}") from None


def _texts(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        found = json.loads(variables.get(name) or "[]")
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise ValueError("no list of texts")
    except ValueError as error:
        raise UsageError(f"{name} must hold a JSON list of texts: {error}") from None
    return tuple(found)


def _pair(variables: Mapping[str, str], name: str) -> tuple[int, int] | None:
    first, _, second = variables.get(name, "").partition(" ")
    return (_number(name, first), _number(name, second)) if first else None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"{name} must hold a number, not {value!r}") from None
