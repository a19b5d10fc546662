"""The attempts to start a command: a fault of a moment is retried, another one is a failure.

Theory of operation. A start needs a process, memory and descriptors. If the node lacks one of them
for a moment, the same start succeeds a little later, so it costs the job no restart. A command that
does not exist, or is not executable, stays so: no restart can help. Any other fault is a failure
like that of a process, and counts against the budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Callable

from ddpjob_protocol.messages.agent import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable

PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)  # between two attempts
CANNOT_START = 127  # the exit code of a shell for such a command
MOMENTARY = {
    errno.EAGAIN: "raise the limit of processes (ulimit -u, pids)",
    errno.ENOMEM: "raise the memory limit of the worker",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files on that node",
    errno.ETXTBSY: "replace programs by renaming, not by writing into them",
    errno.EINTR: "read the logs of that node",
}
PERMANENT = {
    errno.ENOENT: "install the program, or correct the command",
    errno.EACCES: "make the program executable, or correct the command",
    errno.ENOEXEC: "give the script a first line such as #!/bin/sh, or correct the command",
}


def start_failure(subject: str, error: OSError, at: float) -> Failure:
    """Return the failure of a start; `subject` names worker and program."""
    number = error.errno or 0
    remedy = PERMANENT.get(number) or MOMENTARY.get(number) or "read the logs of that node"
    text = f"{subject}: {error.strerror or error}; {remedy}"
    return Failure(at, text, exit_code=CANNOT_START, permanent=number in PERMANENT)


def describe_delay(program: str, error: OSError) -> str:
    """Return the problem of a start that is tried again, with a remedy."""
    remedy = MOMENTARY[error.errno or 0]
    seconds = sum(PAUSES_SECONDS)
    return (
        f"could not start {program!r} at once: {error.strerror}. The agent tries again for"
        f" {seconds:.0f} s. If it happens often, {remedy}"
    )


async def wait_while(is_wanted: Callable[[], bool], changed: asyncio.Event, seconds: float) -> bool:
    """Wait, at most while the start is wanted; return whether it still is. Leave `changed` set."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while is_wanted() and loop.time() < until:
        changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed.wait(), until - loop.time())
    changed.set()
    return is_wanted()


async def start_with_retries(
    start: Callable[[], Awaitable[None]],
    pause: Callable[[float], Awaitable[bool]],
    on_delay: Callable[[OSError], None],
) -> bool:
    """Start, again after each fault of a moment; raise the OSError of the last attempt.

    `pause` waits, and returns whether the start is still wanted. Return False if it is not.
    `on_delay` gets the first fault.
    """
    for number, seconds in enumerate((*PAUSES_SECONDS, None)):
        try:
            await start()
        except OSError as error:
            if error.errno not in MOMENTARY or seconds is None:
                raise
            if number == 0:
                on_delay(error)
            if not await pause(seconds):
                return False
        else:
            return True
    raise AssertionError("the last attempt returns or raises")
