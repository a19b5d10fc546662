"""A script that leaves the loop by `break` or `return`: on every rank after the same step, or not.

A generator cannot raise an error at its end, so the process ends with the error instead. Errors and
exits that pass through the loop are no break: this module does not change them.
"""

from __future__ import annotations

import datetime as dt
import dis
import inspect
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

LEFT_SECONDS = 60.0  # for the other ranks to leave the loop, too
_DROPS_ITERATOR = {"POP_TOP", "POP_ITER", "END_FOR"}  # break and return drop the loop's iterator


def on_close(step: int, finish: Callable[[], None]) -> None:
    """Finish a loop whose generator is closed, if the script left it by break after `step` steps.

    The generator calls this function itself. End the process if another rank has not left.
    """
    if not is_break(sys._getframe(2)):  # noqa: SLF001 - the only way
        return
    try:
        wait_for_others(step)
        finish()
    except Exception as error:  # noqa: BLE001 - Python ignores errors of a closed generator
        end_process(error)


def is_break(frame: FrameType | None) -> bool:
    """Return whether this frame, or one that iterates for it, drops its iterator and continues.

    An error that ends the loop drops the iterator, too, at the instruction that failed.
    """
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in _DROPS_ITERATOR:
            return True
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        frame = frame.f_back
    return False


def wait_for_others(step: int) -> None:
    """Wait until each rank has left the loop after `step` steps. Raise RuntimeError."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - no public one
    keys = [f"ddpjob-left/{step}/{other}" for other in range(world_size)]
    store.set(keys[rank], "left")
    try:
        store.wait(keys, dt.timedelta(seconds=LEFT_SECONDS))
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {rank} left the loop after step {step} by break or return, and not every other "
            f"rank did within {LEFT_SECONDS:.0f} s, or the workers changed. The others would wait "
            "for it. Call loop.stop() instead, on any rank: all ranks stop after the same step"
        ) from error


def end_process(error: BaseException) -> NoReturn:
    """Print an error as Python does, and end this process with exit code 1."""
    sys.excepthook(type(error), error, error.__traceback__)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)
