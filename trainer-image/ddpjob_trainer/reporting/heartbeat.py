"""Sends a heartbeat once a second: the process's step and its line in the script.

If no step completes, the heartbeats identify the process that blocks the others: it has done fewer
steps, is at another line, or sends nothing. A separate thread sends them; the training thread only
stores a number. Without an agent no thread starts; without a rank no heartbeat is sent. Does not
import torch.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ddpjob_protocol.messages.process import ProgressEvent
from ddpjob_trainer.reporting import datagram, stacks, step_counter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

SECONDS = 1.0
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
_PACKAGES = ("site-packages", "dist-packages")


class _Heartbeat:
    """The heartbeat of a process; starts with its first step."""

    def __init__(self) -> None:
        self.step = 0
        self.also: list[Callable[[], object]] = []  # called with each beat
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            stacks.register()
            self._thread = threading.Thread(target=self._beat, name="ddpjob-pulse", daemon=True)
            self._thread.start()

    def _beat(self) -> None:
        while True:
            path, rank = datagram.listener(), os.environ.get("RANK", "")
            if path is not None and rank.isdecimal():
                datagram.send(path, self._message(int(rank)), timeout=0)
            for do in self.also:
                do()
            time.sleep(SECONDS)

    def _message(self, rank: int) -> dict[str, object]:
        return {
            "event": ProgressEvent.ALIVE.value,
            "rank": rank,
            "step": self.step,
            "where": _where(threading.main_thread()),
            "membership": datagram.membership(),
        }


_pulse = _Heartbeat()


def set_step(step: int) -> None:
    """Store the number of steps that this process has done; start the heartbeat."""
    step_counter.write(step)
    _pulse.step = int(step)
    if datagram.listener() is not None:
        _pulse.start()


def on_beat(do: Callable[[], object]) -> None:
    """Register a function for the heartbeat's thread to call; the function must not raise."""
    _pulse.also.append(do)


def _where(thread: threading.Thread) -> str:
    return line_of(sys._current_frames().get(thread.ident or 0))  # noqa: SLF001 - the only way


def line_of(frame: FrameType | None) -> str:
    """Return a thread's innermost line outside of libraries, such as `train.py:31 in main`."""
    innermost, own = frame, frame
    while own is not None and _is_library(own):
        own = own.f_back
    found = own or innermost
    if found is None:
        return ""
    code = found.f_code
    name = "" if code.co_name == "<module>" else f" in {code.co_name}"
    return f"{Path(code.co_filename).name}:{found.f_lineno}{name}"


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    is_package = any(part in _PACKAGES for part in Path(file).parts)
    return is_package or file.startswith(("<", *_LIBRARIES))
