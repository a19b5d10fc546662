"""The SageMaker variables and folders of a script that depend on its membership.

The variables that are equal for the whole job are set by the creator of the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_protocol.messages.membership import Member

FOLDERS = ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_INPUT_CONFIG_DIR")


def build_environment(members: Sequence[Member], me: Member) -> dict[str, str]:
    """Return the variables; hosts are addresses in the order of ranks, the first is the master."""
    hosts = [member.address for member in members]
    config = {"current_host": me.address, "hosts": hosts}
    return {
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": me.address,
        "SM_NUM_CPUS": str(len(os.sched_getaffinity(0))),
        "SM_RESOURCE_CONFIG": json.dumps(config),
    }


def create_folders(environment: Mapping[str, str]) -> None:
    """Create the folders that scripts write to; if that fails, the script reports the error."""
    for name in FOLDERS:
        with contextlib.suppress(OSError, KeyError):
            os.makedirs(environment[name], exist_ok=True)
