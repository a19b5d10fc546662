"""The environment in which the user's command runs in one membership: torchrun's arguments.

torchrun reads every flag that the user did not give from PET_*, so the user's own flags win.
Pure: builds a dict.
"""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from . import contract

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .contract import Member, Membership

AGENT_ONLY = (contract.ENV_TOKEN, contract.ENV_SERVICE)  # never reach the user's processes


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
    }
    return {**torchrun, **_without_agents_own(base), **agent, **ours}


def _without_agents_own(base: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name not in AGENT_ONLY}
