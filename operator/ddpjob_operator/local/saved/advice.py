"""States from what a job resumes, and whether a completed run has trained anything.

A script that reports no steps is only seen from outside: by its files and by its time. A run that
was much shorter than an earlier one does not replace that one as the measure of the next run.
May not: change what is saved.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.local.saved.own_files import OwnFiles
from ddpjob_operator.local.state_dir import JobStateDir
from ddpjob_protocol.codec import decode
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.text import some

NAMES_SHOWN = 3
MUCH_SHORTER = 0.5  # of the time of the earlier run
MEASURE = "measure.json"  # in the folder of a run: the seconds that it is compared with


class RunAdvice:
    """The advice about one run, from what existed before the run and exists now."""

    def __init__(self, job: DDPJob, state: JobStateDir, workdir: Path) -> None:
        self._uri = job.spec.snapshot.uri
        self._state = state
        self._files = OwnFiles(job.spec.snapshot.files, workdir)
        self._names_files = bool(job.spec.snapshot.files)
        self._before = self._files.fingerprint()
        self._earlier_seconds = _measure(state.previous) if state.archived else None
        if self._earlier_seconds is not None:
            state.write(MEASURE, {"seconds": self._earlier_seconds})
        self._start = time.monotonic()

    def after_interruption(self, command: str) -> str:
        """Return how to resume a job that was stopped, with the command."""
        report = self._report()
        step = self._state.newest_step() or (report.snapshot_step if report else None)
        if step is not None:
            return f"stopped; to resume from the snapshot of step {step}: {command}"
        if self._uri is not None:
            return f"stopped; to resume from the newest snapshot in {self._uri}, if any: {command}"
        if files := self._files.found():
            return f"stopped; to resume from {some(files, NAMES_SHOWN)}: {command}"
        if self._state.has_snapshots():
            return f"stopped; to resume from the last snapshot: {command}"
        own = "" if self._names_files else ", unless the script resumes from a file of its own"
        return f"stopped; no snapshot was saved: it starts from the beginning{own}: {command}"

    def after_completion(self) -> str:
        """Return a warning if the completed run has trained nothing, as far as ddpjob can see."""
        report = self._report()
        if report is None or any(each.first_step is not None for each in report.memberships):
            return ""
        resumed = [each.resumed_step for each in report.memberships if each.resumed_step]
        if resumed:
            where = f"give another prefix than {self._uri}" if self._uri else "run with --fresh"
            return (
                f"no step was trained: the snapshot of step {resumed[-1]} already held the end of"
                f" the training; to train again, {where}"
            )
        if self._before and self._before == self._files.fingerprint():
            return (
                f"probably no step was trained: {some(self._files.found(), NAMES_SHOWN)} existed"
                " before the run and did not change; to train again, run with --fresh"
            )
        took, earlier = time.monotonic() - self._start, self._earlier_seconds
        if not self._names_files and earlier and took < MUCH_SHORTER * earlier:
            return (
                f"this run took {took:.0f} s, an earlier completed run {earlier:.0f} s: if the"
                " script found its own file with the end of the training, it trained nothing;"
                " move that file away, or name it in snapshot.files and run with --fresh"
            )
        return ""

    def _report(self) -> Report | None:
        content = self._state.read("report.json")
        return decode(Report, content) if content else None


def _measure(state: Path) -> float | None:
    """Return the time of a completed run, or its own measure if it was much shorter than that."""
    try:
        took = float(json.loads((state / "timeline.jsonl").read_text().splitlines()[-1])["at"])
    except (OSError, ValueError, LookupError):
        return None
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        earlier = float(json.loads((state / MEASURE).read_text())["seconds"])
        return earlier if took < MUCH_SHORTER * earlier else took
    return took
