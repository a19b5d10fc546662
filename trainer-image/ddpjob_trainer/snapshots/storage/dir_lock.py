"""The folders in a directory that are not shown yet: of living writers, and left by dead ones.

Each writer holds a shared lock while it prepares a hidden folder. If a process gets the exclusive
lock, each hidden folder belongs to a dead writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from ddpjob_trainer.snapshots.storage.volume import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"
_HIDDEN_NAMES = (f".step-*{HIDDEN}", f".fence-*{HIDDEN}")


@contextlib.contextmanager
def writing_in(directory: Path, word: str = "") -> Iterator[None]:
    """Hold the shared lock, and clear hidden folders except those of attempt `word`."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            for each in itertools.chain.from_iterable(map(directory.glob, _HIDDEN_NAMES)):
                if not (word and each.name.endswith(f".{word}{HIDDEN}")):
                    shutil.rmtree(each, ignore_errors=True)
        _locked(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


def hidden(target: Path, word: str = "") -> Path:
    """Return the hidden folder of attempt `word`, or of a new attempt, for the folder `target`."""
    return target.with_name(f".{target.name}.{word or secrets.token_hex(4)}{HIDDEN}")


def discard(folder: Path) -> None:
    """Remove a folder with its name first, as others may still write to it. Raise OSError."""
    doomed = folder.with_name(f".step-{secrets.token_hex(4)}{HIDDEN}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _locked(descriptor: int, operation: int) -> bool:
    """Return whether the lock is held; a file system without locks returns False."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        return False
    return True
