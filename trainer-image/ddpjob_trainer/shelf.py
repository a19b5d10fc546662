"""A directory of snapshot folders: publishing one at once, keeping some, clearing what died.

Writers prepare a folder under a hidden name and rename it. Each holds a shared lock while it
does; who gets the lock alone knows that every hidden folder there belongs to a dead writer.
What is visible but unusable is never deleted, only set aside when its name is needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from ddpjob_trainer import folder
from ddpjob_trainer.folder import Content, UnusableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK = ".lock"
_HIDDEN = ".tmp"

_log = logging.getLogger("ddpjob")


class Shelf:
    """The snapshots in one directory, by step."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = keep

    def publish(self, step: int, content: Content) -> None:
        """Makes the snapshot exist, durably, unless it already does. Raises OSError."""
        target = self.directory / folder.name_of(step)
        if _whole(target, content=True):
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._writing():
            aside = self._hidden(target)
            try:
                aside.mkdir()
                content.write(aside)
                self._rename(aside, target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            folder.sync(self.directory)
            self._retain(step)

    def steps(self) -> list[int]:
        """Steps of all folders that are named like snapshots, newest first. Raises OSError."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except FileNotFoundError:
            return []
        for name in names:
            if name.startswith("step-") and folder.step_of(name) is None:
                _log.warning("%s is ignored: not named like a snapshot", self.directory / name)
        return sorted((s for s in map(folder.step_of, names) if s is not None), reverse=True)

    def complete(self) -> list[int]:
        """Steps whose folders look whole, newest first, without reading tensors."""
        return [step for step in self.steps() if _whole(self.path(step), content=False)]

    def path(self, step: int) -> Path:
        """Where the snapshot of this step lies, if it does."""
        return self.directory / folder.name_of(step)

    def _rename(self, aside: Path, target: Path) -> None:
        if target.exists() and not _whole(target, content=True):
            spare = target.with_name(f"unusable-{target.name}-{secrets.token_hex(4)}")
            _log.warning("%s is unusable, and set aside as %s", target, spare.name)
            target.rename(spare)
        try:
            aside.rename(target)
        except OSError as error:
            overtaken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not (overtaken and _whole(target, content=True)):
                raise

    def _retain(self, newest: int) -> None:
        # A damaged folder of a later step may count as complete: never drop what was just saved.
        others = [step for step in self.complete() if step != newest]
        for step in others[max(self._keep - 1, 0) :]:
            doomed = self._hidden(self.path(step))
            self.path(step).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        lock = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                for stale in self.directory.glob(f".step-*{_HIDDEN}"):
                    shutil.rmtree(stale, ignore_errors=True)
            _locked(lock, fcntl.LOCK_SH)
            yield
        finally:
            os.close(lock)

    def _hidden(self, target: Path) -> Path:
        return target.with_name(f".{target.name}.{secrets.token_hex(4)}{_HIDDEN}")


def _locked(descriptor: int, operation: int) -> bool:
    """Whether the lock was got; a file system without locks gives none."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        return False
    return True


def _whole(path: Path, *, content: bool) -> bool:
    try:
        folder.check(path, content=content)
    except UnusableError:
        return False
    return True
