"""The first moments of `ddpjob`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from ddpjob_operator.cli.common import ExitCode
from ddpjob_operator.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[3]
JOB = ROOT / "examples" / "01-torchrun" / "ddpjob.yaml"
PYTORCHJOB = Path(__file__).parents[1] / "convert" / "files" / "fixed.yaml"

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
# Runs one command in each child process, with stdout and stderr of its own. Answers with exit codes.
CHILDREN = """
import json, os, sys
import ddpjob_operator.cli.main as command, typer.rich_utils
for name in command.COMMANDS:
    command.load(name)
codes = []
for words, out, err in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.argv = ["ddpjob", *words.split()]
        for number, path in (1, out), (2, err):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        try:
            command.main()
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(99)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*codes)
"""
FULL = "/dev/full"
NO_SPACE = (
    "stdout cannot be written: [Errno 28] No space left on device; the output is incomplete\n"
)
WARNED = f"convert {PYTORCHJOB}"  # writes to both
PRINTING = (
    "--version",
    "--help",
    "completion bash",
    f"validate {JOB}",
    WARNED,
    *(f"{name} --help" for name in COMMANDS),
)


def test_a_full_disk_under_stdout_is_no_failed_job(tmp_path: Path) -> None:
    ends = _run_children(tmp_path, [(words, FULL) for words in PRINTING])
    assert {code for code, _ in ends.values()} == {ExitCode.OUTPUT_FAILED}
    assert [words for words, (_, stderr) in ends.items() if not stderr.endswith(NO_SPACE)] == []


def test_a_stderr_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    expected = {WARNED: 0, "gett": 2, "get --kubeconfig none": 2, "validate none": 2, "version": 0}
    words = json.dumps([(words, str(tmp_path / "out"), FULL) for words in expected])
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, words], capture_output=True, text=True, check=True
    )
    assert dict(zip(expected, map(int, done.stdout.split()), strict=True)) == expected


def test_a_line_that_cannot_be_written_at_all_leaves_the_exit_code() -> None:
    with Path(FULL).open("w") as full:
        done = _run("version", stdout=full, stderr=full)
    assert done.returncode == ExitCode.OUTPUT_FAILED


def test_closed_streams_are_written_to_nowhere() -> None:
    """What goes to a closed stderr is not in the output for programs."""
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&- <&-', "sh", *_words(WARNED)],
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    assert closed.returncode == ExitCode.OK
    assert closed.stdout.endswith(b"amd.com/gpu: 1\n")
    silent = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *_words(WARNED)], check=False
    )
    assert silent.returncode == ExitCode.OK


@pytest.mark.parametrize("arguments", ["--help", "version"])
def test_a_closed_reader_ends_a_command_quietly(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = _run(arguments, stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, "")


def _run_children(folder: Path, cases: list[tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """Return exit code and stderr of each command; a process for each, with shared imports."""
    files = [folder / f"{number}.err" for number in range(len(cases))]
    given = [(*case, str(file)) for case, file in zip(cases, files, strict=True)]
    command = [sys.executable, "-c", CHILDREN, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    codes = map(int, done.stdout.split())
    return {
        case[0]: (code, file.read_text())
        for case, code, file in zip(cases, codes, files, strict=True)
    }


def _words(arguments: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, *arguments.split()]


def _run(
    arguments: str, *, stdout: IO[str], stderr: IO[str] | int
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_words(arguments), stdout=stdout, stderr=stderr, check=False, text=True)


# Prints lines, and ends without a flush.
PRINTER = """
import os, sys
from ddpjob_operator import terminal
terminal.prepare()
print("first")
print("second", file=sys.stderr)
print("third")
os._exit(0)
"""


def test_unbuffered_streams_stay_so() -> None:
    """An image with PYTHONUNBUFFERED has each line in its log at once, in the order of printing."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", PRINTER],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/operator:{ROOT}/trainer-image"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        text=True,
    )
    assert done.stdout == "first\nsecond\nthird\n"
