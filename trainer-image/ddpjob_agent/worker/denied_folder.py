"""The remedy for a process that may not write to the volume of the snapshots.

A new volume usually belongs to root, and most images run as another user. The agent runs as the
user of the processes, so it can report both. May not: change a folder.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat

from ddpjob_protocol.messages import Failure

_DENIED = re.compile(r"PermissionError: .*Permission denied: '(/[^']*)'")
_REMEDY = "set template.spec.securityContext.fsGroup, or change the owner if the volume ignores it"


def explain_denied(failure: Failure, snapshot_folder: str) -> Failure:
    """Return the failure; if it concerns the volume of the snapshots, add owner and remedy."""
    match = _DENIED.search(failure.summary)
    volume = os.path.dirname(snapshot_folder)
    if match is None or not volume or os.path.commonpath([volume, match[1]]) != volume:
        return failure
    summary = f"{failure.summary}; {describe_owner(match[1])}; {_REMEDY}"
    return dataclasses.replace(failure, summary=summary)


def describe_owner(path: str) -> str:
    """Return the owner of the nearest folder that exists, and the user of this process."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    found = os.stat(path)
    owner = f"user {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o}"
    groups = ", ".join(str(group) for group in sorted({os.getgid(), *os.getgroups()}))
    return f"{path} belongs to {owner}, but the process is user {os.getuid()}, groups {groups}"
