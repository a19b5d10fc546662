"""The space of a volume: a full one, and the limit beyond which kubelet evicts the pod.

This module does not depend on snapshots.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, TypeVar

from ddpjob_trainer.errors import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HIDDEN = ".tmp"  # suffix of a file or folder that is not complete, or is being deleted
FULL = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")


def write_with_space(write: Callable[[], T], drop: Callable[[], bool]) -> T:
    """Return the result of `write`; while the volume is full, call `drop` and write again.

    `drop` returns False if it has nothing more to delete. Raise the errors of both.
    """
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL or not drop():
                raise


def make_room(
    where: str, size: int, limit: int, used: Callable[[], int], drop: Callable[[], bool] | None
) -> None:
    """Call `drop` until `size` more bytes fit below the limit. Raise SnapshotError if they cannot.

    `used` returns the bytes that stay. Without `drop`, only check that the volume is large enough.
    """
    if 2 * size > limit:
        raise SnapshotError(
            f"Snapshots of {size:,} bytes do not fit in the volume of {where}: its limit "
            f"(emptyDir.sizeLimit) is {limit:,} bytes, and the pod would be evicted with all its "
            f"snapshots. Set a limit of at least {2 * size:,} bytes: the last whole snapshot stays "
            "while the next one is written."
        )
    while drop is not None and (held := used()) + size > limit:
        if not drop():
            raise SnapshotError(
                f"A snapshot of {size:,} bytes does not fit in the volume of {where}: its limit "
                f"(emptyDir.sizeLimit) is {limit:,} bytes, and it holds {held:,}. Delete other files "
                "there, or set a higher limit."
            )


def used(directory: Path) -> int:
    """Return the bytes of all files below a directory, without folders that are being deleted."""
    total = 0
    for folder, inner, names in os.walk(directory):
        inner[:] = [name for name in inner if not name.endswith(HIDDEN)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - many files
    return total
