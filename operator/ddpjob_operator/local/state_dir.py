"""The folder of a local job that outlives a run: snapshots, logs, last status.

    .ddpjob/NAMESPACE/NAME/  lock  uid  status.json  report.json  timeline.jsonl
                             course.jsonl  measure.json  logs/  snapshots/
A run that does not continue the previous one is another job: it gets another UID.
May not: start processes or decide anything about the job.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEP = re.compile(r"step-(\d{12})")
_MANIFEST = "*/manifest-*.json"  # in the folder of a step; written last


class AlreadyRunningError(Exception):
    """Another process runs this job from this folder."""


class StateDirError(Exception):
    """The folder cannot be used."""


class JobStateDir:
    """A job's folder, locked while the job runs."""

    def __init__(self, root: Path, namespace: str, name: str) -> None:
        self.path = (root / namespace / name).resolve()
        self.logs = self.path / "logs"
        self.snapshots = self.path / "snapshots"
        self.term = 0  # term of the last rendezvous service
        self.archived = False  # `begin` has moved a completed run to `previous`
        self._lock: int | None = None

    @property
    def previous(self) -> Path:
        """Folder of the last finished run."""
        return self.path.with_name(self.path.name + ".previous")

    def lock(self) -> None:
        """Lock the folder; raise AlreadyRunningError or StateDirError if that fails."""
        try:
            self._lock_folder()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StateDirError:
        """Return the error for a folder of which a part cannot be used."""
        where = Path(error.filename) if isinstance(error.filename, str) else self.path
        owner = ""
        with contextlib.suppress(OSError):
            if isinstance(error, PermissionError) and (user := where.stat().st_uid) != os.geteuid():
                owner = f" ('{where}' belongs to user {user}, and you are user {os.geteuid()})"
        return StateDirError(
            f"cannot keep the job's state in {self.path}: {error.strerror}{owner}; repair the folder,"
            " or choose another folder with --state-dir"
        )

    def _lock_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode() or "unknown"
            os.close(handle)
            raise AlreadyRunningError(
                f"this job is already running here, as process {holder} in {self.path}; end that"
                " one first, or choose another folder with --state-dir"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, *, fresh: bool) -> bool:
        """Prepare a run; return whether the run resumes an earlier one.

        A completed run is archived, an interrupted or failed run is resumed. Raise StateDirError
        if the folder cannot be used.
        """
        try:
            return self._begin(fresh=fresh)
        except OSError as error:
            raise self._unusable(error) from error

    def _begin(self, *, fresh: bool) -> bool:
        status = self.read("status.json")
        saved = self.has_snapshots()
        self.archived = status.get("state") == "Complete"
        if self.archived or (fresh and saved):
            self._archive()  # an archive must not be replaced by a run without snapshots
            saved = False
        else:
            self.term = int(status.get("rendezvousTerm", 0))
        self.logs.mkdir(exist_ok=True)
        self.snapshots.mkdir(exist_ok=True)
        for folder in (self.logs, self.snapshots):
            if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        for name in ("status.json", "report.json", "timeline.jsonl", "course.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        if self.term:
            self.write("status.json", {"rendezvousTerm": self.term})
        return saved

    def has_snapshots(self) -> bool:
        """Return whether a run can resume from something in this folder."""
        return next(self._snapshots(), None) is not None

    def newest_step(self) -> int | None:
        """Return the step of the newest snapshot of ddpjob_trainer in this folder."""
        names = (path.parent.parent.name for path in self.snapshots.glob(f"step-*/{_MANIFEST}"))
        return max(
            (int(found[1]) for name in names if (found := _STEP.fullmatch(name))), default=None
        )

    def _snapshots(self) -> Iterator[Path]:
        """Yield the snapshots of ddpjob_trainer, the script's own files, and replicas of these."""
        for path in self.snapshots.glob("*"):
            if _STEP.fullmatch(path.name):
                yield from path.glob(_MANIFEST)
            elif not path.name.startswith((".", "fence-")):
                yield path
        yield from self.snapshots.glob(".files/[0-9]*")

    def _archive(self) -> None:
        from ddpjob_operator.local.simulated.processes import (  # noqa: PLC0415 - most users need no psutil
            sweep,
        )

        sweep(self.uid())  # a run that was killed may have left processes
        shutil.rmtree(self.previous, ignore_errors=True)
        self.previous.mkdir()
        for item in self.path.iterdir():
            if item.name != "lock":
                item.rename(self.previous / item.name)

    def uid(self) -> str:
        """Return the job's UID; each run that resumes from this folder has the same one."""
        file = self.path / "uid"
        with contextlib.suppress(FileNotFoundError):
            return file.read_text()
        aside = self.path / ".uid.new"
        aside.write_text(uuid.uuid4().hex)
        aside.replace(file)
        return file.read_text()

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder; return an empty dict if missing or truncated."""
        try:
            content = json.loads((self.path / name).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def write(self, name: str, content: Any) -> None:
        """Replace a JSON file atomically; if the disk is full, skip the write."""
        aside = self.path / f".{name}.new"
        with contextlib.suppress(OSError):
            aside.write_text(json.dumps(content, indent=1, default=str) + "\n")
            aside.replace(self.path / name)
