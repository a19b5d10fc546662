"""The lines of the ranks that a local run shows."""

from __future__ import annotations

from typing import Any

import pytest

from ddpjob_operator.local.output.summary import describe_failure
from ddpjob_operator.local.output.view import UPDATE_SECONDS, LogMode, OutputView
from support.builders import make_failure

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    fail()
ValueError: loss is nan
"""
SECONDARY = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:1
"""


class Shown:
    """A view, and the lines that it shows."""

    def __init__(self, mode: LogMode) -> None:
        self.view = OutputView("job", mode)

    def feed(self, text: str, rank: int | None = 0, stream: str = "out", **more: Any) -> list[str]:
        worker = more.get("worker", "job-worker-000-1")
        message = {
            "rank": rank,
            "first": more.get("first", rank == 0),
            "stream": stream,
            "source": more.get("source", rank),
            "text": text.encode().decode("latin-1"),
        }
        lines = self.view.feed(worker, message, more.get("now", 0.0))
        return [f"{line.label} {line.text}" for line in lines]

    def end(self, worker: str = "job-worker-000-1") -> list[str]:
        return [f"{line.label} {line.text}" for line in self.view.end(worker)]


@pytest.mark.parametrize(
    ("mode", "rank", "first", "stream", "lines"),
    [
        (LogMode.RANK0, 0, True, "out", ["[worker-000 0] ü"]),
        (LogMode.RANK0, 3, False, "out", []),
        (LogMode.RANK0, 3, False, "err", ["[worker-000 3] ü"]),
        (LogMode.RANK0, None, True, "out", ["[worker-000] ü"]),
        (LogMode.RANK0, None, False, "out", []),
        (LogMode.ALL, 3, False, "out", ["[worker-000 3] ü"]),
        (LogMode.ALL, None, False, "out", ["[worker-000] ü"]),
    ],
)
def test_ranks(mode: LogMode, rank: int | None, first: bool, stream: str, lines: list[str]) -> None:
    assert Shown(mode).feed("ü\n", rank, stream, first=first) == lines


def test_streams_do_not_mix_and_the_rest_of_a_worker_is_shown_at_its_end() -> None:
    shown = Shown(LogMode.ALL)
    assert shown.feed("on", 0) + shown.feed("tw", 1) + shown.feed("x", 0, "err") == []
    assert shown.feed("e\n", 0) == ["[worker-000 0] one"]
    assert shown.feed("last", 2, worker="job-worker-001-1") == []
    assert shown.end() == ["[worker-000 1] tw", "[worker-000 0] x"]
    assert shown.end("job-worker-001-1") == ["[worker-001 2] last"]


def test_a_progress_bar_of_rank_0_is_shown_from_time_to_time() -> None:
    shown = Shown(LogMode.RANK0)
    assert shown.feed("\r1%", stream="err", now=1) == ["[worker-000 0] 1%"]
    assert shown.feed("\r2%", stream="err", now=2) == []
    assert shown.feed("\r2%", 1, "err", now=2) == [], "that of another rank is not"
    assert shown.feed("\r9%", stream="err", now=2 + UPDATE_SECONDS) == ["[worker-000 0] 9%"]
    assert shown.feed("\r100%\n", stream="err", now=13) == ["[worker-000 0] 100%"]


def test_each_traceback_is_shown_once() -> None:
    shown = Shown(LogMode.RANK0)
    first = shown.feed(TRACEBACK, 1, "err")
    assert first == [f"[worker-000 1] {line}" for line in TRACEBACK.splitlines()]
    again = "".join(f"[rank3]: {line}" for line in TRACEBACK.splitlines(keepends=True))
    assert shown.feed(again, 3, "err") == [
        "[worker-000 3] ValueError: loss is nan (the same traceback as above)"
    ]
    assert shown.feed(SECONDARY, 0, "err") == [
        "[worker-000 0] RuntimeError because another process ended (traceback in the log)"
    ]
    assert shown.feed(TRACEBACK.replace("ValueError", "x.SignalException"), 0, "err") == [
        "[worker-000 0] torchrun: stopped by a signal (traceback in the log)"
    ]
    other = TRACEBACK.replace("nan", "inf")
    assert len(shown.feed(other, 1, "err")) == 4
    assert shown.feed("still here\n", 1, "err") == ["[worker-000 1] still here"]


def test_a_traceback_in_pieces() -> None:
    shown = Shown(LogMode.RANK0)
    for line in TRACEBACK.splitlines(keepends=True)[:-1]:
        assert shown.feed(line, 1, "err") == []
    assert len(shown.feed("ValueError: loss is nan\n", 1, "err")) == 4
    assert shown.feed(TRACEBACK[:40], 2, "err") == []
    assert shown.end() == [
        "[worker-000 2] Traceback (most recent call last):",
        "[worker-000 2]   Fil",
    ]


def test_the_end_quotes_the_traceback_only_if_it_was_not_shown() -> None:
    shown = Shown(LogMode.RANK0)
    failure = make_failure(rank=1, exit_code=1, traceback=TRACEBACK.rstrip())
    message = f"rank 1: ValueError: loss is nan\nTraceback of rank 1:\n{TRACEBACK}"
    facts = "rank 1: ValueError: loss is nan\nrank 1 ended with exit code 1\n"
    assert describe_failure(message, failure, shown.view) == (
        f"{facts}Traceback of rank 1:\n{TRACEBACK}"
    )
    shown.feed(TRACEBACK, 1, "err")
    facts = facts.replace("rank 1 ended", "rank 1 on job-worker-000-1 ended")
    assert describe_failure(message, failure, shown.view) == (
        f"{facts.rstrip()}; its traceback is above"
    )
    assert describe_failure("lost too often", None, shown.view) == "lost too often"


def test_output_that_was_dropped_is_reported() -> None:
    view = OutputView("job", LogMode.RANK0)
    (line,) = view.feed("job-worker-000-1", {"dropped": 7}, 0.0)
    assert (line.label, line.text) == (
        "[worker-000]",
        "7 bytes were not shown here; the log has them",
    )
