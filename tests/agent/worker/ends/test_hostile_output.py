"""Output that is made to stop the agent: the report of the failure takes few steps.

The regular expressions are checked in `test_patterns`. Here the lines that Python executes are
counted: eight times the text may take eight times the lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ddpjob_agent.worker.ends import failure_report
from ddpjob_agent.worker.ends.denied_folder import explain_denied
from ddpjob_agent.worker.ends.failure_report import MAX_SUMMARY_CHARS, explain_missing_script
from ddpjob_protocol.messages.agent import Failure

SIZE = 64 << 10
HEAD = "Traceback (most recent call last):\n"

# Each is a beginning, and what repeats after it.
HOSTILE = {
    "root causes": ("", "Root Cause (first observed failure):\nrank : 1\n"),
    "ranks of a root cause": ("Root Cause (first observed failure):\n", "rank  : 1 "),
    "blanks of a root cause": ("Root Cause (first observed failure):\nrank : 1 exitcode", " "),
    "a long rank": ("Root Cause (first observed failure):\nrank : ", "9"),
    "a long exit code": ("Root Cause (first observed failure):\nrank : 1 exitcode : ", "9"),
    "a long prefix": ("[rank", "9"),
    "prefixes": ("", "[rank1]: "),
    "many ranks": ("", f"[rank1]: {HEAD}[rank2]: {HEAD}"),
    "places": ("", '  File "x", line 1\n'),
    "places in a line": ('  File "', '", line 1'),
    "places of a syntax error": ('  File "x", line 1\n', "    \n"),
    "a long line number": ('  File "x", line ', "9"),
    "tracebacks": ("", HEAD),
    "tracebacks and errors": ("", f"{HEAD}x\n"),
    "chained tracebacks": ("", f"{HEAD}x\n{failure_report._CHAIN[0]}\n\n"),
    "blank lines of a chain": (f"{HEAD}x\n{failure_report._CHAIN[0]}\n", "\n"),
    "ranks of mpirun": ("", "process rank 1 with PID 1 on node "),
    "a node of mpirun": ("process rank 1 with PID 1 on node ", "x"),
    "blanks of mpirun": ("process rank 1 with PID 1 on node x", " "),
    "commas of mpirun": ("Process name: [", ",1"),
    "a long code of mpirun": ("Process name: [x,1]\nExit code: ", "9"),
    "rules of mpirun": ("", f"{'-' * 74}\n"),
    "a rule of mpirun": ("", "-"),
    "an echo of MPI": ("[", ":1"),
    "echoes of MPI": ("", "[x:1] "),
    "logs": ("", "E1121 09:57:22.1 failed (exitcode: 1)\n"),
    "a long log": ("E1121 09:57:22.", "1"),
    "nothing": ("", "\n"),
    "scripts": ("", "can't open file '"),
    "a long script": ("can't open file '", "x"),
}  # fmt: skip


def fill(beginning: str, repeated: str, size: int) -> str:
    return (beginning + repeated * (size // len(repeated)))[:size]


def lines_of(work: Callable[[], Any]) -> int:
    """Return how many lines of the module the work executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == failure_report.__file__ else None

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("case", HOSTILE)
def test_report_takes_lines_in_proportion_to_the_output(case: str) -> None:
    counts = []
    for size in (SIZE // 8, SIZE):
        text = fill(*HOSTILE[case], size).encode()

        def work(text: bytes = text) -> None:
            found = failure_report.read_failure(1, 2.0, text, 1.0, "/none", lambda _: "w")
            assert len(found.summary) <= MAX_SUMMARY_CHARS

        counts.append(lines_of(work))
    assert counts[1] <= 9 * counts[0] + 1000


@pytest.mark.parametrize(
    "beginning", ["PermissionError: ", "can't open file '", "Permission denied: '"]
)
def test_remedies_of_hostile_failures(beginning: str) -> None:
    for repeated in (beginning, "x", "'"):
        failure = Failure(1.0, fill(beginning, repeated, SIZE), exit_code=2)
        assert explain_missing_script(failure, "/work") == failure
        assert explain_denied(failure, "/volume/job", "/work") == failure
