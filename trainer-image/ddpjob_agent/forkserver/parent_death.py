"""Ends a process when its parent ends. Linux only."""

from __future__ import annotations

import ctypes
import os

from ddpjob_protocol.exit_codes import Exit

PR_SET_PDEATHSIG = 1


def die_with_parent(number: int, parent: int) -> None:
    """Let the kernel send a signal to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(Exit.STOPPED)
