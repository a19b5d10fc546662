"""The environment in which the user's command runs in one membership: torchrun's arguments.

torchrun reads every flag that the user did not give from PET_*, so the user's own flags win.
Also the file in which processes leave how far they are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import contract

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .contract import Member, Membership

STEPS_FILE = "steps"
AGENT_ONLY = (contract.ENV_TOKEN, contract.ENV_SERVICE)  # never reach the user's processes


def steps_done(logs: str) -> int | None:
    """By the process that had done most of those that were started with `logs`; None: no word."""
    try:
        with open(os.path.join(logs, STEPS_FILE), "rb") as file:
            content = file.read()
    except OSError:
        return None
    size = contract.STEPS_BYTES
    words = (content[at : at + size] for at in range(0, len(content), size))
    return max((int.from_bytes(word, "little") for word in words), default=None)


def import_environment(base: Mapping[str, str], processes: int) -> dict[str, str]:
    """The one in which torch is imported for warm starts: as torchrun will make it."""
    few = {"OMP_NUM_THREADS": "1"} if processes > 1 else {}
    return {**few, **_without_agents_own(base)}


def command_environment(
    base: Mapping[str, str], membership: Membership, me: Member, store: str, sockets: str, logs: str
) -> dict[str, str]:
    """`base` with what the command needs to meet the other members of `membership`.

    `store` is host:port of the membership's c10d store, `sockets` the folder of the agent's
    sockets, `logs` one for what torchrun writes. A PET_* variable that the user set stays.
    """
    ours = {contract.ENV_MEMBERSHIP: str(membership.id)}
    return _environment(base, len(membership.members), me, store, sockets, logs, ours)


def live_environment(
    base: Mapping[str, str], me: Member, local_store: str, store: str, sockets: str, logs: str
) -> dict[str, str]:
    """The same for processes that stay: a torchrun of its own in each worker, meeting nobody.

    The processes enter memberships by themselves, over `store`; `local_store` is for torchrun.
    """
    ours = {contract.ENV_LIVE: "1", contract.ENV_STORE: store}
    return _environment(base, 1, me, local_store, sockets, logs, ours)


def _environment(
    base: Mapping[str, str],
    nodes: int,
    me: Member,
    endpoint: str,
    sockets: str,
    logs: str,
    ours: Mapping[str, str],
) -> dict[str, str]:
    torchrun = {
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": str(me.processes),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": base.get(contract.ENV_JOB_UID, "ddpjob"),
        "PET_RDZV_CONF": "is_host=0",
        "PET_LOCAL_ADDR": me.address,
        "PET_MAX_RESTARTS": "0",
        "PET_LOG_DIR": logs,
    }
    agent = {
        contract.ENV_REPORT_SOCKET: os.path.join(sockets, contract.REPORT_SOCKET),
        contract.ENV_GROUP_SOCKET: os.path.join(sockets, contract.GROUP_SOCKET),
        contract.ENV_STEPS: os.path.join(logs, STEPS_FILE),
    }
    return {**torchrun, **_without_agents_own(base), **agent, **ours}


def _without_agents_own(base: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name not in AGENT_ONLY}
