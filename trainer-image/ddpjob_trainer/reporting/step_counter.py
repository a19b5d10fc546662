"""Writes the number of done steps to a file of the agent; the file survives a killed process.

Reports of steps are sparse, and a killed process loses the last ones. Each step costs one write of
eight bytes. Never raises. Does not import torch.
"""

from __future__ import annotations

import contextlib
import os

from ddpjob_protocol.environment import ENV_STEPS, STEPS_BYTES


class _Counter:
    """A file with the number of done steps; the first step opens it."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._file: int | None = None
        self._step: int | None = None

    def write(self, step: int) -> None:
        path = os.environ.get(ENV_STEPS)
        if path != self._path:
            self._file, self._path, self._step = _opened(path), path, None
        if self._file is not None and step != self._step:
            self._step = step
            offset = STEPS_BYTES * int(os.environ.get("LOCAL_RANK", "0"))
            os.pwrite(self._file, step.to_bytes(STEPS_BYTES, "little"), offset)


_counter = _Counter()


def write(step: int) -> None:
    """Write the number of steps that this process has done."""
    with contextlib.suppress(OSError, OverflowError, ValueError):
        _counter.write(int(step))


def _opened(path: str | None) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600) if path else None
    except OSError:
        return None
