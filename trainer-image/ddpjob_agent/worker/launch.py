"""The command of each start of a worker, its environment, and its log folder.

torchrun reads every flag that the user did not set from PET_*, so the user's own flags win. A
script without torchrun gets the environment variables that other clusters set.
This module also reads the file in which processes record their steps. It starts and ends no
process; `process_tree` does.
"""

from __future__ import annotations

import glob
import logging
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.launchers import mpi, sagemaker
from ddpjob_agent.net.c10d_relay import HOST, LocalStore
from ddpjob_agent.net.rendezvous_use import ExpectedUse
from ddpjob_agent.net.sockets.reserved_port import ReservedPort
from ddpjob_protocol.addresses import join_address
from ddpjob_protocol.environment import (
    ENV_FIRST_RANK,
    ENV_GROUP_SOCKET,
    ENV_JOB_UID,
    ENV_KEYS,
    ENV_LEFT_STATE,
    ENV_LIVE,
    ENV_MEMBERSHIP,
    ENV_OUTPUT,
    ENV_REPORT_SOCKET,
    ENV_SAGEMAKER,
    ENV_SERVICE,
    ENV_STEPS,
    ENV_STORE,
    ENV_WARM_PARENT,
    ENV_WORLD_SIZE,
    GROUP_SOCKET,
    REPORT_SOCKET,
    STEPS_BYTES,
    Launcher,
)
from ddpjob_protocol.parsers.checks import MAX_COUNT
from ddpjob_protocol.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_agent.worker.decisions.orders import Run
    from ddpjob_protocol.messages.membership import Member

log = logging.getLogger("ddpjob.agent")

STEPS_FILE = "steps"
# If the user sets one of these, as a flag or as PET_*, torchrun must host the store.
OWN_STORE = ("--standalone", "pet-standalone", "rdzv-endpoint")
# A command that names one of these has a rendezvous of its own, or forms the group itself.
OWN_GROUP = (*OWN_STORE, "rdzv-backend", "master-addr", "node-rank")
USUAL_PORT = 29500  # torch's default, for a service version that assigns no port
# The user's processes must not inherit these variables.
AGENT_ONLY = (ENV_KEYS, ENV_SERVICE, ENV_WARM_PARENT, ENV_OUTPUT)


def recorded_steps(logs: str) -> list[int]:
    """Return the step of each local rank, from the steps file in `logs`; none without a file."""
    try:
        with open(os.path.join(logs, STEPS_FILE), "rb") as file:
            content = file.read()
    except OSError:
        return []
    size = STEPS_BYTES
    words = (content[at : at + size] for at in range(0, len(content), size))
    return [int.from_bytes(word, "little") for word in words]


def import_environment(base: Mapping[str, str], processes: int) -> dict[str, str]:
    """Return the environment in which the fork server imports torch, as torchrun will set it."""
    few = {"OMP_NUM_THREADS": "1"} if processes > 1 else {}
    return {**few, **_without_agent_variables(base)}


class LaunchContext(NamedTuple):
    """The members, addresses and folders of one start of the command."""

    members: tuple[Member, ...]  # in rank order; only `me` in live mode
    me: Member
    endpoint: str  # host:port of torchrun's c10d store
    port: int | None  # free at the first member, for the user's own store
    sockets: str  # folder of the agent's sockets
    logs: str  # folder of torchrun's logs and mpirun's files
    mpi_key: bytes = b""

    @property
    def is_first(self) -> bool:
        """True if this worker has the lowest ranks."""
        return self.me == self.members[0]


class Command(NamedTuple):
    """A command line and its environment."""

    argv: Sequence[str]
    environment: Mapping[str, str]


class RunFactory:
    """A factory of runs of one agent's command."""

    def __init__(
        self,
        folder: str,
        user: Command,
        launcher: Launcher,
        program: Sequence[str],
        peers: bytes = b"",
    ) -> None:
        """`program` starts one of the agent's own roles; `peers` is the key of all workers."""
        self._peers = peers
        self._folder = folder
        self._user = user
        self._launcher = launcher
        self._program = program
        self._count = 0
        self.local_store = LocalStore()
        self.port = ReservedPort()

    @property
    def logs(self) -> str:
        """Log folder of the latest run."""
        return os.path.join(self._folder, str(self._count))

    def step_facts(self) -> dict[str, float]:
        """Return the step that the processes of the latest run have done, and its age in seconds.

        They write it to a file, so it is known although they report only sometimes.
        """
        steps = [step for step in recorded_steps(self.logs) if step <= MAX_COUNT]
        if not steps:
            return {}
        try:
            age = time.time() - os.stat(os.path.join(self.logs, STEPS_FILE)).st_mtime
        except OSError:
            return {}
        return {"step": max(steps), "step_age": max(0.0, age)}

    def expected_use(self, run: Run, me: Member) -> ExpectedUse | None:
        """Return the use of the rendezvous that the command should make; None if there is none.

        One worker watches for all: torchrun at any other worker would wait for it.
        """
        membership = run.membership
        if self._launcher is not Launcher.TORCHRUN or membership is None:
            return None
        watches = membership.members[0] == me and membership.world_size > 1
        return ExpectedUse.of(membership) if watches and not _names(self._user, OWN_GROUP) else None

    def next_command(self, run: Run, me: Member, relay: int) -> Command:
        """Return the next command; `relay` is the store's port. Raise OSError on a disk error."""
        self._count += 1
        os.mkdir(self.logs)
        self.local_store.renew()
        left = os.path.join(self._folder, "left")
        if not run.inherits:
            for path in glob.glob(f"{glob.escape(left)}.*"):
                os.unlink(path)
        store = join_address(HOST, relay)
        membership = run.membership
        if membership is None:
            log.info("starting processes that stay")
            local = join_address(HOST, self.local_store.port)
            meeting = LaunchContext((me,), me, local, self.port.number, self._folder, self.logs)
            ours = {ENV_LIVE: "1", ENV_STORE: store, ENV_LEFT_STATE: left}
        else:
            log.info(
                "membership %s (%s): %s, world size %d",
                membership.id, membership.cause, plural(len(membership.members), "worker"),
                membership.world_size,
            )  # fmt: skip
            members = membership.members
            meeting = LaunchContext(
                members, me, store, run.port, self._folder, self.logs,
                mpi.key_of(self._peers, str(membership.id)),
            )  # fmt: skip
            ours = {ENV_MEMBERSHIP: str(membership.id)}
        return build_command(self._user, self._launcher, self._program, meeting, ours)


def build_command(
    user: Command,
    launcher: Launcher,
    agent: Sequence[str],
    meeting: LaunchContext,
    ours: Mapping[str, str],
) -> Command:
    """Return the user's command with the environment of its start; the user's variables win.

    `agent` is the command that starts one of the agent's own programs. `ours` wins over all.
    """
    argv, base = user
    if launcher is Launcher.TORCHRUN:
        found = _torchrun_flags(argv, base, meeting)
    elif launcher is Launcher.MPI:
        argv = mpi.build_command(argv, agent, first=meeting.is_first)
        found = mpi.build_environment(
            meeting.members, agent, meeting.logs, meeting.endpoint, meeting.mpi_key
        )
    else:
        found = _script_environment(meeting)
    if base.get(ENV_SAGEMAKER):
        found |= sagemaker.build_environment(meeting.members, meeting.me)
        sagemaker.create_folders(base)
    sockets = {
        ENV_REPORT_SOCKET: os.path.join(meeting.sockets, REPORT_SOCKET),
        ENV_GROUP_SOCKET: os.path.join(meeting.sockets, GROUP_SOCKET),
        ENV_STEPS: os.path.join(meeting.logs, STEPS_FILE),
    }
    given = {
        **_node_environment(meeting),
        **found,
        **_without_agent_variables(base),
        **sockets,
        **ours,
    }
    return Command(argv, given)


def _node_environment(meeting: LaunchContext) -> dict[str, str]:
    """Return the variables that command lines and scripts use on every kind of cluster."""
    return {
        "MASTER_ADDR": meeting.members[0].address,
        "MASTER_PORT": str(meeting.port or USUAL_PORT),
        "NNODES": str(len(meeting.members)),
        "NODE_RANK": str(meeting.members.index(meeting.me)),
        "NPROC_PER_NODE": str(meeting.me.processes),
    }


def _torchrun_flags(
    argv: Sequence[str], base: Mapping[str, str], meeting: LaunchContext
) -> dict[str, str]:
    flags = {
        "PET_NNODES": str(len(meeting.members)),
        "PET_NPROC_PER_NODE": str(meeting.me.processes),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": meeting.endpoint,
        "PET_RDZV_ID": base.get(ENV_JOB_UID, "ddpjob"),
        "PET_LOCAL_ADDR": meeting.me.address,
        "PET_MAX_RESTARTS": "0",
        "PET_LOG_DIR": meeting.logs,
    }
    if not _names(Command(argv, base), OWN_STORE):
        flags["PET_RDZV_CONF"] = "is_host=0"
    return flags


def _names(command: Command, words: Sequence[str]) -> bool:
    """Return whether the command line, or a variable's name in its environment, has a word."""
    said = " ".join([*command.argv, *command.environment]).lower().replace("_", "-")
    return any(word in said for word in words)


def _script_environment(meeting: LaunchContext) -> dict[str, str]:
    """Return the variables of a script; RANK and WORLD_SIZE count workers, not processes."""
    members, at = meeting.members, meeting.members.index(meeting.me)
    variables = {
        "RANK": str(at),
        "WORLD_SIZE": str(len(members)),
        ENV_FIRST_RANK: str(sum(each.processes for each in members[:at])),
        ENV_WORLD_SIZE: str(sum(each.processes for each in members)),
    }
    if all(each.processes == 1 for each in members):
        variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return variables


def _without_agent_variables(base: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name not in AGENT_ONLY}
