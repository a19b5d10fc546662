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

    from .contract import Membership

AGENT_ONLY = (contract.ENV_TOKEN, contract.ENV_SERVICE)  # never reach the user's processes


def command_environment(
    base: Mapping[str, str],
    membership: Membership,
    worker: str,
    relay_port: int,
    folder: str,
    log_folder: str,
) -> dict[str, str]:
    """`base` with what the command needs to meet the other members of `membership`.

    `folder` holds the report socket, `log_folder` what torchrun writes in this membership.
    A PET_* variable that the user set stays as it is.
    """
    me = next(member for member in membership.members if member.worker == worker)
    torchrun = {
        "PET_NNODES": str(len(membership.members)),
        "PET_NPROC_PER_NODE": str(me.processes),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{relay_port}",
        "PET_RDZV_ID": base.get(contract.ENV_JOB_UID, "ddpjob"),
        "PET_RDZV_CONF": "is_host=0",
        "PET_LOCAL_ADDR": me.address,
        "PET_MAX_RESTARTS": "0",
        "PET_LOG_DIR": log_folder,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    ours = {
        contract.ENV_MEMBERSHIP: str(membership.id),
        contract.ENV_REPORT_SOCKET: os.path.join(folder, "report.sock"),
    }
    theirs = {name: value for name, value in base.items() if name not in AGENT_ONLY}
    return {**torchrun, **theirs, **ours}
