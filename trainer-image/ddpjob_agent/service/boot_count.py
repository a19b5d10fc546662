"""The count of the starts of a service, in a file that is whole or absent, whatever dies."""

from __future__ import annotations

import contextlib
import logging
import os
import time

MAX_BYTES = 18  # as many digits as the identity of a membership allows

log = logging.getLogger("ddpjob.rendezvous")


def next_boot(path: str) -> int:
    """Return a number that is higher than that of each earlier start, and keep it."""
    boot = _read(path) + 1
    new = path + ".new"
    with open(new, "w", encoding="ascii") as file:
        file.write(str(boot))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    with contextlib.suppress(OSError):  # not every file system can
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return boot


def _read(path: str) -> int:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return 0
    if content.isdigit() and len(content) <= MAX_BYTES:
        return int(content)
    log.warning(
        "%s has %r instead of a number; the starts are counted from the time on", path, content
    )
    return int(time.time())  # higher than any count of starts
