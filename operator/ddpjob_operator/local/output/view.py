"""Chooses and labels the lines of the ranks that a local run shows.

May not: read a clock, print, open anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from ddpjob_operator.local.output.lines import Line, LineSplitter
from ddpjob_operator.tracebacks import StreamTracebacks, TracebackFilter

UPDATE_SECONDS = 10.0  # between two states of a progress bar that a rank prints
_INCARNATION = re.compile(r"-\d+$")


class LogMode(StrEnum):
    """The ranks whose output is shown."""

    RANK0 = "rank0"  # and stderr of all ranks
    ALL = "all"
    NONE = "none"


class OutputLine(NamedTuple):
    """A line to show."""

    label: str
    worker: str
    text: str


class _Stream:
    """One stream of one process."""

    def __init__(self, seen: TracebackFilter) -> None:
        self.splitter = LineSplitter()
        self.tracebacks = StreamTracebacks(seen)
        self.message: Mapping[str, Any] = {}  # the last one
        self.updated_at: float | None = None


class OutputView:
    """The output of all workers of one job."""

    def __init__(self, job: str, mode: LogMode) -> None:
        self._job = job
        self._mode = mode
        self._streams: dict[tuple[str, object, str], _Stream] = {}
        self._tracebacks = TracebackFilter()
        self._workers: dict[int, str] = {}  # that printed last, by rank

    @property
    def mode(self) -> LogMode:
        """Ranks whose output is shown."""
        return self._mode

    def feed(self, worker: str, message: Mapping[str, Any], now: float) -> list[OutputLine]:
        """Return the lines to show for a message of an agent."""
        if "dropped" in message:
            text = f"{message['dropped']} bytes were not shown here; the log has them"
            return [OutputLine(self._label(worker, None), worker, text)]
        if "text" not in message:
            return self.end(worker)
        if message["rank"] is not None:
            self._workers[message["rank"]] = worker
        key = (worker, message["source"], message["stream"])
        stream = self._streams.setdefault(key, _Stream(self._tracebacks))
        stream.message = message
        found = stream.splitter.feed(message["text"].encode("latin-1"))
        return self._show(worker, stream, found, now)

    def end(self, worker: str) -> list[OutputLine]:
        """Return the rest of a worker's streams, because its processes have ended."""
        found = []
        for key in [key for key in self._streams if key[0] == worker]:
            stream = self._streams.pop(key)
            found += self._show(worker, stream, stream.splitter.end(), 0.0, is_end=True)
        return found

    def has_shown(self, traceback: str) -> bool:
        """Return whether all lines of a traceback have been shown."""
        return self._tracebacks.has_shown(traceback)

    def worker_of(self, rank: int) -> str | None:
        """Return the worker that printed last as this rank."""
        return self._workers.get(rank)

    def _show(
        self,
        worker: str,
        stream: _Stream,
        found: Iterable[Line],
        now: float,
        *,
        is_end: bool = False,
    ) -> list[OutputLine]:
        message = stream.message
        shows_all = self._mode is LogMode.ALL or message["first"]
        is_error = message["stream"] == "err"
        if not shows_all and not is_error:
            return []
        texts = []
        for line in found:
            if not line.is_update:
                texts.append(line.text)
            elif shows_all and _is_due(stream.updated_at, now):
                stream.updated_at = now
                texts.append(line.text)
        if is_error:
            texts = stream.tracebacks.feed(texts) + (stream.tracebacks.end() if is_end else [])
        label = self._label(worker, message["rank"])
        return [OutputLine(label, worker, text) for text in texts]

    def _label(self, worker: str, rank: int | None) -> str:
        name = _INCARNATION.sub("", worker.removeprefix(f"{self._job}-"))
        return f"[{name}]" if rank is None else f"[{name} {rank}]"


def _is_due(last: float | None, now: float) -> bool:
    return last is None or now - last >= UPDATE_SECONDS
