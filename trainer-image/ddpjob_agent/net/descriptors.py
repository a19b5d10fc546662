"""The limit of open files, which bounds the connections of a process."""

from __future__ import annotations

import resource

MOST = 65536  # more than a job has workers


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, up to `MOST`; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
