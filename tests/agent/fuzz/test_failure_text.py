"""Output and error files of a command: a failure that the service and the operator accept."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ddpjob_agent.worker.ends.failure_report import (
    MAX_SUMMARY_CHARS,
    MAX_TRACEBACK_CHARS,
    explain_missing_script,
    read_failure,
)
from ddpjob_protocol.codec import encode
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.parsers.report_check import check_message
from support.fuzzing import Draw, fuzz, measured, mutated, mutated_json

NOW = 1_700_000_000.0
LINES = (
    "Traceback (most recent call last):", '  File "a.py", line 7, in <module>', "    boom()",
    "ValueError: boom", "[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: x", "",
    "RuntimeError: Connection reset by peer", "Root Cause (first observed failure):",
    "The above exception was the direct cause of the following exception:",
    "  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 5)", "SyntaxError: invalid syntax",
    "E0727 10:00:00.123 5 api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 7)", "-" * 60,
    "mpirun noticed that process rank 2 with PID 5 on node n exited on signal 9 (Killed).",
    "  Process name: [[5,1],3]", "  Exit code:    1", "[rank999999999]: x",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "python: can't open file '/w/no.py': [Errno 2] No such file or directory", "\x1b[31m red", "x" * 5000,
)  # fmt: skip
printed = mutated(st.lists(st.sampled_from(LINES), max_size=40).map("\n".join).map(str.encode))
ERROR_FILE: dict[str, Any] = {
    "message": {
        "message": "ValueError: boom",
        "extraInfo": {"py_callstack": "\n".join(LINES[:4]), "timestamp": "1700000000"},
    }
}
recorded = mutated(mutated_json(st.just(ERROR_FILE)).map(lambda value: json.dumps(value).encode()))


def check(failure: Failure) -> None:
    """Check that a service takes the failure as it is, and that it is short."""
    assert len(failure.summary) <= MAX_SUMMARY_CHARS
    assert len(failure.traceback) <= MAX_TRACEBACK_CHARS
    assert "\n" not in failure.summary
    data = json.loads(json.dumps(encode(failure), allow_nan=False))
    message = {"type": "exited", "membership": "1.1.1", "live": False, "failure": data}
    assert check_message(message)["failure"] == data


def failure_of(said: bytes, logs: str, code: int) -> Failure:
    found = read_failure(code, NOW, said, NOW - 1, logs, lambda rank: f"worker {rank}")
    return explain_missing_script(found, "/job")


@st.composite
def folders(draw: Draw) -> list[tuple[str, bytes]]:
    """Return the error files of a few processes."""
    return [(f"{n}/error.json", draw(recorded)) for n in range(draw(st.integers(0, 2)))]


@fuzz(200)
@given(printed, folders(), st.sampled_from([1, 2, -9, -64, 137]))
@example(b"", [("0/error.json", b"[" * 100_000)], 1)
@example(
    b"",
    [
        (
            "0/error.json",
            json.dumps({"message": {"extraInfo": {"py_callstack": "a\nx: \ud800"}}}).encode(),
        )
    ],
    1,
)
def test_a_failure_is_short_and_accepted(
    said: bytes, files: list[tuple[str, bytes]], code: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files:
            Path(folder, name).parent.mkdir()
            Path(folder, name).write_bytes(content)
        size = len(said) + sum(len(content) for _, content in files)
        failure = measured(lambda: failure_of(said, folder, code), size)
    check(failure)


def test_what_lies_in_place_of_an_error_file_is_passed_over(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "0" / "error.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "1" / "error.json")
    (tmp_path / "2" / "error.json").mkdir()
    check(failure_of(b"ValueError: boom\n", str(tmp_path), 1))
