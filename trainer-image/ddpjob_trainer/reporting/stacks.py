"""Lets the agent read the Python stacks of this process, if the job hangs.

On a signal, Python's own handler writes the stacks of all threads to a file of the agent, also while
the process waits outside of Python. Never raises. Does not import torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from pathlib import Path

from ddpjob_protocol.environment import ENV_STEPS
from ddpjob_protocol.messages.process import STACK_FILE, STACK_SIGNAL


def register() -> None:
    """Write the stacks at each signal of the agent; without an agent do nothing."""
    steps = os.environ.get(ENV_STEPS)
    if not steps:
        return
    path = Path(steps).with_name(f"{STACK_FILE}.{os.getpid()}")
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        # The handler keeps the descriptor for the life of the process.
        faulthandler.register(STACK_SIGNAL, file=os.open(path, flags, 0o600), all_threads=True)
