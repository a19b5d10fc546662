"""The remedy for a process that may not write to the volume of the snapshots.

A new volume usually belongs to root, and most images run as another user. The agent runs as the
user of the processes, so it can report both. A restart does not help while the folder itself
cannot be written to. May not: change a folder.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat

from ddpjob_protocol.environment import ENV_SNAPSHOT_DIR
from ddpjob_protocol.messages.agent import Failure

_DENIED = re.compile(
    r"PermissionError: .{0,99}Permission denied: '(?P<python>[^']{1,4095})'"
    r'|Permission denied \(os error 13\) at path "(?P<safetensors>[^"]{1,4095})"'
    r"|open file failed with strerror: Permission denied"  # torch.save, which names no path
)
REMEDY = "set template.spec.securityContext.fsGroup, or change the owner if the volume ignores it"
_ELSEWHERE = f"save below ${ENV_SNAPSHOT_DIR}, or change the owner of this working directory"


def explain_denied(failure: Failure, snapshot_folder: str, working_folder: str) -> Failure:
    """Return the failure; if it concerns the volume of the snapshots, add owner and remedy."""
    match = _DENIED.search(failure.summary)
    volume = os.path.dirname(snapshot_folder)
    if match is None or not volume:
        return failure
    if name := match["python"] or match["safetensors"]:
        path = os.path.join(working_folder, name)
        if os.path.commonpath([volume, path]) != volume:
            return failure
        folder = _existing(path)
        return _explain(failure, folder, REMEDY, permanent=not _is_writable(folder))
    folder = _existing(snapshot_folder)
    if os.path.isdir(volume) and not _is_writable(folder):
        return _explain(failure, folder, REMEDY, permanent=True)
    if not _is_writable(working_folder):
        return _explain(failure, working_folder, _ELSEWHERE, permanent=False)
    return failure


def describe_owner(folder: str) -> str:
    """Return the owner of a folder, and the user of this process."""
    found = os.stat(folder)
    owner = f"user {found.st_uid}, group {found.st_gid}, mode {stat.S_IMODE(found.st_mode):o}"
    groups = ", ".join(str(group) for group in sorted({os.getgid(), *os.getgroups()}))
    return f"{folder} belongs to {owner}, but the process is user {os.getuid()}, groups {groups}"


def _explain(failure: Failure, folder: str, remedy: str, *, permanent: bool) -> Failure:
    summary = f"{failure.summary}; {describe_owner(folder)}; {remedy}"
    return dataclasses.replace(failure, summary=summary, permanent=permanent)


def _existing(path: str) -> str:
    """Return the nearest folder that exists."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _is_writable(folder: str) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)
