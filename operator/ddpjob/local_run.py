"""Runs a job on this machine: `ddpjob run --local` in a process of its own.

So a run works beside any event loop, and torch stays out of the caller's process.
May not: hold policy.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ddpjob.errors import LocalRunError
from ddpjob.run_result import RunResult
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.local.state_dir import JobStateDir

COMMAND = [sys.executable, "-u", "-m", "ddpjob", "run", "--local", "-"]  # `-`: the file is stdin
LAST_LINES = 20  # of the output, in the error for a run that could not start


def run(
    text: str, state: JobStateDir, options: Sequence[str], on_line: Callable[[str], object]
) -> RunResult:
    """Run the job of a text to its end, with a call for each line of output."""
    before = _version(state)
    last: deque[str] = deque(maxlen=LAST_LINES)
    with _started(text, options) as process:
        for line in _lines(process):
            last.append(line)
            on_line(line)
    code = process.returncode
    finished = code in (ExitCode.OK, ExitCode.JOB_FAILED) and _version(state) != before
    status = DDPJobStatus.model_validate(state.read("status.json") if finished else {})
    if status.completion_time is None:
        raise LocalRunError("\n".join(last), code)
    return RunResult(code, status, state.path)


@contextlib.contextmanager
def _started(text: str, options: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start the command; after an error or an interrupt, stop the job as Ctrl-C does."""
    process = subprocess.Popen(
        [*COMMAND, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C of a terminal reaches the caller only, which sends it once
    )
    with process:
        try:
            with contextlib.suppress(BrokenPipeError):
                _stdin(process, text)
            yield process
        except BaseException:
            process.send_signal(signal.SIGINT)
            for _ in _lines(process):  # until the job has ended
                pass
            raise


def _stdin(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(text)


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")


def _version(state: JobStateDir) -> object:
    """Return a mark that changes with each write of the status."""
    with contextlib.suppress(OSError):
        return (state.path / "status.json").stat().st_mtime_ns
    return None
