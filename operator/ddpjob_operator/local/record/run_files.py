"""Reads the folder of a local run as the data of a report, while it runs and later."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from ddpjob_operator.local.record.course import FILE
from ddpjob_operator.report.from_files import run_of_files
from ddpjob_operator.report.run import Run

MAX_BYTES = 16 * 1024 * 1024  # of a file; only its end is read

WRITTEN = (FILE, "status.json", "report.json", "timeline.jsonl")
STILL_SECONDS = 60.0  # a run that wrote nothing for this time may have been killed


def is_run(folder: Path) -> bool:
    """Return whether a folder has the files of a run."""
    return (folder / FILE).is_file() or (folder / "status.json").is_file()


def find_runs(folder: Path) -> list[Path]:
    """Return the folder itself, or the folders of runs below it: of a `.ddpjob` or beside one."""
    if is_run(folder):
        return [folder]
    found = {
        path.parent
        for pattern in ("*/*/status.json", ".ddpjob/*/*/status.json")
        for path in folder.glob(pattern)
        if not path.parent.name.endswith(".previous")
    }
    return sorted(found)


def read_run(folder: Path) -> Run:
    """Return the run of a folder; raise OSError if a file cannot be read."""
    course, timeline = (_lines(folder / name) for name in (FILE, "timeline.jsonl"))
    return run_of_files(course, timeline, _status(folder / "status.json"), _now(folder))


def _now(folder: Path) -> float:
    """Return the time of the last observation: now, or of the last write if nothing runs."""
    newest, now = 0.0, time.time()
    for name in WRITTEN:
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return newest if newest and now - newest > STILL_SECONDS else now


def _lines(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - MAX_BYTES))
            return stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def _status(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
