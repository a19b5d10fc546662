"""The successive starts of the command: the purpose, folder and environment of each start.

This module starts and ends no process; `process_tree` does.
"""

from __future__ import annotations

import glob
import logging
import os
from typing import TYPE_CHECKING

from ddpjob_agent.worker.c10d_relay import HOST, LocalStore
from ddpjob_agent.worker.launch import Command, LaunchContext, build_command
from ddpjob_agent.worker.reserved_port import ReservedPort
from ddpjob_protocol.environment import ENV_LEFT_STATE, ENV_LIVE, ENV_MEMBERSHIP, ENV_STORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_protocol.environment import Launcher
    from ddpjob_protocol.membership import Member, Membership

log = logging.getLogger("ddpjob.agent")


class Run:
    """One start of the command: for one membership, or for live mode (None)."""

    def __init__(
        self, membership: Membership | None, port: int | None = None, *, inherits: bool = False
    ) -> None:
        self.membership = membership
        self.port = port  # free port at the first member
        self.inherits = inherits  # True to load the state that stuck processes left
        self.ended_under: tuple[str, str] | None = None  # the order under which the run ended

    @property
    def live(self) -> bool:
        """True if the processes stay when the membership changes."""
        return self.membership is None


class RunFactory:
    """A factory of runs of one agent's command."""

    def __init__(
        self, folder: str, user: Command, launcher: Launcher, program: Sequence[str]
    ) -> None:
        """`program` starts one of the agent's own roles."""
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

    def next_command(self, launch: Run, me: Member, relay: int) -> Command:
        """Return the next command; `relay` is the store's port. Raise OSError on a disk error."""
        self._count += 1
        os.mkdir(self.logs)
        self.local_store.renew()
        left = os.path.join(self._folder, "left")
        if not launch.inherits:
            for path in glob.glob(f"{glob.escape(left)}.*"):
                os.unlink(path)
        store = f"{HOST}:{relay}"
        membership = launch.membership
        if membership is None:
            log.info("starting processes that stay")
            local = f"{HOST}:{self.local_store.port}"
            meeting = LaunchContext((me,), me, local, self.port.number, self._folder, self.logs)
            ours = {ENV_LIVE: "1", ENV_STORE: store, ENV_LEFT_STATE: left}
        else:
            log.info(
                "membership %s (%s): %d workers, world size %d",
                membership.id, membership.cause, len(membership.members), membership.world_size,
            )  # fmt: skip
            members = membership.members
            meeting = LaunchContext(members, me, store, launch.port, self._folder, self.logs)
            ours = {ENV_MEMBERSHIP: str(membership.id)}
        return build_command(self._user, self._launcher, self._program, meeting, ours)
