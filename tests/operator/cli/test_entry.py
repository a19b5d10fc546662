"""The first moments of `ddpjob`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from ddpjob_operator.cli.common import ExitCode

# The import of a module of the command presses Ctrl-C.
PROGRAM = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["ddpjob", "version"]
from ddpjob_operator.cli.entry import main
main()
"""


def test_ctrl_c_during_the_imports_prints_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=False,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


COMMAND = "from ddpjob_operator.cli.entry import main; main()"
NO_SPACE = (
    "stdout cannot be written: [Errno 28] No space left on device; the output is incomplete\n"
)


@pytest.mark.parametrize(
    "arguments", ["--version", "--help", "version", "completion bash", "wait --help"]
)
def test_a_full_disk_under_stdout_is_no_failed_job(arguments: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = _run(arguments, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (ExitCode.OUTPUT_FAILED, NO_SPACE)


def test_a_line_that_cannot_be_written_at_all_leaves_the_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        done = _run("version", stdout=full, stderr=full)
    assert done.returncode == ExitCode.OUTPUT_FAILED


@pytest.mark.parametrize("arguments", ["--help", "version"])
def test_a_closed_reader_ends_a_command_quietly(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = _run(arguments, stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, "")


def _run(
    arguments: str, *, stdout: IO[str], stderr: IO[str] | int
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *arguments.split()]
    return subprocess.run(command, stdout=stdout, stderr=stderr, check=False, text=True)
