"""The launcher `mpi`: the first worker runs the command with mpirun, all others run its daemons.

    first worker                                       every other worker
    lead ─► command ─► mpirun ─► shell ── a line, over the membership's store ──► follow ─► daemon

This module builds each worker's command and mpirun's environment. `mpi_helpers` has the programs
lead, shell and follow. mpirun reads settings that are not on its command line from the environment:
the hosts with their slots, and the replacement for ssh. Open MPI 5 reads PRTE_MCA_*, 4 OMPI_MCA_*.
The agents derive a key for each membership, and only their own user can read its file. follow runs a
line only with a code of that key, because other users of the machine may reach the store.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from ddpjob_protocol.environment import ENV_MPI_KEY, ENV_STORE
from ddpjob_protocol.keys.credentials import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddpjob_protocol.messages.membership import Member

HOSTS_FILE, SHELL_FILE, KEY_FILE = "hosts", "shell", "key"


def key_of(peers: bytes, membership: str) -> bytes:
    """Return the key of the lines of one membership; `peers` is the key of all workers."""
    return derive(peers, "mpi", membership)


def build_command(argv: Sequence[str], agent: Sequence[str], *, first: bool) -> tuple[str, ...]:
    """Return a worker's command for the user's `argv`; `agent` starts the zipapp."""
    return (*agent, "mpi-lead", "--", *argv) if first else (*agent, "mpi-follow")


def build_environment(
    members: Sequence[Member], agent: Sequence[str], folder: str, store: str, key: bytes
) -> dict[str, str]:
    """Return mpirun's environment; write the files that it names to `folder`."""
    hosts, shell = os.path.join(folder, HOSTS_FILE), os.path.join(folder, SHELL_FILE)
    with open(hosts, "w", encoding="utf-8") as file:
        file.writelines(f"{each.worker} slots={each.processes}\n" for each in members)
    with open(shell, "w", encoding="utf-8") as file:
        file.write(f'exec {shlex.join(agent)} mpi-shell {shlex.quote(hosts)} "$@"\n')
    key_file = os.path.join(folder, KEY_FILE)
    with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as secret:
        secret.write(key)
    return {
        ENV_STORE: store,
        ENV_MPI_KEY: key_file,
        "PRTE_MCA_plm_ssh_agent": f"sh {shell}",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_prte_default_hostfile": hosts,
        "PRTE_MCA_prte_do_not_resolve": "1",  # the host names are names of workers
        "PRTE_MCA_prte_leave_session_attached": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm_rsh_agent": f"sh {shell}",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_default_hostfile": hosts,
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
