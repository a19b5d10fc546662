"""What a script for SageMaker finds about the hosts of its membership.

All else that it finds is the same for the whole job, and told by who creates the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_protocol.membership import Member

FOLDERS = ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_INPUT_CONFIG_DIR")


def build_environment(members: Sequence[Member], me: Member) -> dict[str, str]:
    """Hosts by their addresses, in the order of the ranks: the first one is the master."""
    hosts = [member.address for member in members]
    config = {"current_host": me.address, "hosts": hosts}
    return {
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": me.address,
        "SM_NUM_CPUS": str(len(os.sched_getaffinity(0))),
        "SM_RESOURCE_CONFIG": json.dumps(config),
    }


def create_folders(environment: Mapping[str, str]) -> None:
    """Those that scripts write to; a script that cannot write there says so itself."""
    for name in FOLDERS:
        with contextlib.suppress(OSError, KeyError):
            os.makedirs(environment[name], exist_ok=True)
