"""The report of a failed command, from the output of real scripts, torchrun and torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpjob_agent.worker.ends.failure_report import MAX_TRACEBACK_CHARS, read_failure
from ddpjob_protocol.messages.agent import Failure

ENDED = 1000.0  # when the command ended
PRINTED = 999.5  # when its first traceback came
PATH = "/opt/venv/lib/python3.11/site-packages/torch/distributed"


def mpirun(text: str) -> str:
    rule = 74 * "-"
    return f"{rule}\n{text}\n{rule}\n"


def torchrun(*, rank: int = 0, code: int = 1) -> str:
    """Return the lines that torchrun adds when one of its processes fails."""
    return f"""\
E1121 09:57:22.601000 9312 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 0 (pid: 9319) of binary: /opt/venv/bin/python
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "{PATH}/launcher/api.py", line 386, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:{" "}
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_10:08:47
  host      : localhost
  rank      : 7 (local_rank: 1)
  exitcode  : -15 (pid: 9320)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 9320
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_09:57:22
  host      : localhost
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 9319){" "}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def of_rank(rank: int, text: str) -> str:
    """Return the text as torch's excepthook prints it in a process group, without blank lines."""
    return "".join(f"[rank{rank}]: {line}\n" if line else "\n" for line in text.splitlines())


HEAD = "Traceback (most recent call last):\n"
NAN = f"""\
{HEAD}  File "/job/train.py", line 8, in <module>
    raise ValueError("loss is nan")
ValueError: loss is nan
"""
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:29093."
CLOSED = f"""\
{HEAD}  File "/job/train.py", line 6, in <module>
    dist.all_reduce(t)
  File "{PATH}/distributed_c10d.py", line 4181, in all_reduce
    work.wait()
{GLOO}
"""
CHAINED = f"""\
{HEAD}  File "/job/train.py", line 4, in <module>
    {{}}["rate"]
    ~~^^^^^^^^
KeyError: 'rate'

The above exception was the direct cause of the following exception:

{HEAD}  File "/job/train.py", line 6, in <module>
    raise ConfigError("no rate in the configuration\\n  give one:\\n    rate: 0.1") from error
ConfigError: no rate in the configuration
  give one:
    rate: 0.1
"""
CLEANUP = f"""\
{NAN}
During handling of the above exception, another exception occurred:

{CLOSED}"""
LOADER = f"""\
{HEAD}  File "/job/train.py", line 5, in <module>
    for batch in loader:
RuntimeError: Caught OSError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/job/data.py", line 3, in __getitem__
    return read(index)
OSError: [Errno 5] Input/output error
"""
SYNTAX = """\
  File "/job/train.py", line 1
    step(
        ^
SyntaxError: '(' was never closed
"""
MPIS_ECHO = "[vm:00000] *** An error occurred in Socket closed\n[vm:00000] *** Unknown error\n"
MPIRUN_KILLED = """\
prterun noticed that process rank 3 with PID 24888 on node vm exited on
signal 9 (Killed)."""
MPIRUN_ENDED = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-25193@1,2]
   Exit code:    3"""
MPIRUN_ABORTED = """\
prterun has exited due to process rank 3 with PID 24821 on node vm calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here)."""
NO_FILE = (
    "/opt/venv/bin/python: can't open file '/job/trian.py': [Errno 2] No such file or directory"
)
ARGPARSE = (
    "usage: train.py [-h] steps\ntrain.py: error: the following arguments are required: steps"
)
WARNING = (
    "[rank1]:[W1121 09:57:22.5 ProcessGroupNCCL.cpp:1479] Warning: destroy_process_group()"
    " was not called\n"
)
OMP = "W1121 09:57:15.0 9312 torch/distributed/run.py:852] Setting OMP_NUM_THREADS\n"
NO_TRACEBACK = ""

# Exit code and stderr of the command; then the reported summary, traceback and rank.
TABLE: list[tuple[str, int, str, str, str, int | None]] = [
    ("plain_script", 1, NAN, "the command of w: ValueError: loss is nan", NAN, None),
    ("at_import", 1, NAN + torchrun(rank=3), "rank 3 (w): ValueError: loss is nan", NAN, 3),
    (
        "prefixed_with_its_rank",
        1,
        OMP + of_rank(1, NAN) + torchrun(rank=1),
        "rank 1 (w): ValueError: loss is nan",
        NAN,
        1,
    ),
    (
        "beside_one_that_died_of_it",
        1,
        of_rank(0, CLOSED) + of_rank(1, NAN) + torchrun(rank=0),
        "rank 1 (w): ValueError: loss is nan",
        NAN,
        1,
    ),
    (
        "lines_of_two_ranks_mixed",
        1,
        "".join(
            a + b
            for a, b in zip(
                of_rank(2, NAN).splitlines(keepends=True),
                of_rank(1, NAN.replace("loss", "rate")).splitlines(keepends=True),
                strict=True,
            )
        ),
        "rank 2 (w): ValueError: loss is nan",
        NAN,
        2,
    ),
    (
        "two_at_import",
        1,
        NAN + NAN.replace("loss", "rate") + torchrun(rank=0),
        "rank 0 (w): ValueError: loss is nan",
        NAN,
        0,
    ),
    (
        "chain_and_message_of_many_lines",
        1,
        CHAINED + torchrun(),
        "rank 0 (w): ConfigError: no rate in the configuration",
        CHAINED,
        0,
    ),
    (
        "chain_with_prefix",
        1,
        of_rank(1, CHAINED) + WARNING + torchrun(rank=1),
        "rank 1 (w): ConfigError: no rate in the configuration",
        CHAINED.replace("\n\n", "\n"),
        1,
    ),
    (
        "cleanup_that_failed_as_well",
        1,
        CLEANUP,
        "the command of w: ValueError: loss is nan",
        CLEANUP,
        None,
    ),
    (
        "data_loader",
        1,
        LOADER + torchrun(),
        "rank 0 (w): RuntimeError: Caught OSError in DataLoader worker process 0.",
        LOADER,
        0,
    ),
    (
        "syntax_error",
        1,
        SYNTAX + torchrun(rank=0),
        "rank 0 (w): SyntaxError: '(' was never closed",
        SYNTAX,
        0,
    ),
    (
        "script_that_is_not_there",
        2,
        f"{NO_FILE}\n",
        f"the command of w ended with exit code 2; last on stderr: {NO_FILE}",
        NO_TRACEBACK,
        None,
    ),
    (
        "script_that_is_not_there_below_torchrun",
        1,
        f"{OMP}{NO_FILE}\n{torchrun(rank=1, code=2)}",
        f"rank 1 (w) ended with exit code 2; last on stderr: {NO_FILE}",
        NO_TRACEBACK,
        1,
    ),
    (
        "wrong_flag",
        2,
        f"{ARGPARSE}\n\n",
        f"the command of w ended with exit code 2; last on stderr: {ARGPARSE.splitlines()[1]}",
        NO_TRACEBACK,
        None,
    ),
    ("silent", 3, "", "the command of w ended with exit code 3", NO_TRACEBACK, None),
    (
        "silent_below_torchrun",
        1,
        OMP + torchrun(rank=1, code=3),
        "rank 1 (w) ended with exit code 3",
        NO_TRACEBACK,
        1,
    ),
    (
        "segmentation_fault",
        1,
        torchrun(rank=1, code=-11),
        "rank 1 (w) was killed by SIGSEGV",
        NO_TRACEBACK,
        1,
    ),
    (
        "killed_below_mpirun",
        137,
        MPIS_ECHO + mpirun(MPIRUN_KILLED) + "\0",
        "rank 3 (w) was killed by SIGKILL",
        NO_TRACEBACK,
        3,
    ),
    (
        "ended_below_mpirun",
        3,
        f"{NO_FILE}\n{mpirun(MPIRUN_ENDED)}",
        f"rank 2 (w) ended with exit code 3; last on stderr: {NO_FILE}",
        NO_TRACEBACK,
        2,
    ),
    (
        "ended_all_below_mpirun",
        7,
        mpirun("MPI_ABORT was invoked on rank 3\n  Errorcode: 7")
        + MPIS_ECHO
        + mpirun(MPIRUN_ABORTED),
        "rank 3 (w) ended with exit code 7; last on stderr: MPI_ABORT was invoked on rank 3",
        NO_TRACEBACK,
        3,
    ),
    (
        "mpirun_itself",
        66,
        mpirun("prterun was unable to find it\nand did not launch the job."),
        "the command of w ended with exit code 66; last on stderr: prterun was unable to find it",
        NO_TRACEBACK,
        None,
    ),
    ("killed", -9, "step 3\n", "the command of w was killed by SIGKILL", NO_TRACEBACK, None),
    ("cut_off_in_the_middle", 1, HEAD, f"the command of w: {HEAD.strip()}", HEAD, None),
    (
        "not_text",
        1,
        "\udcff\udcfe\n",
        "the command of w ended with exit code 1; last on stderr: \ufffd\ufffd",
        NO_TRACEBACK,
        None,
    ),
]


def read(code: int, stderr: str, folder: Path) -> Failure:
    data = stderr.encode(errors="surrogateescape")
    at = PRINTED if HEAD.encode().strip() in data else None
    return read_failure(code, ENDED, data, at, str(folder), lambda _: "w")


@pytest.mark.parametrize(
    ("code", "stderr", "summary", "traceback", "rank"),
    [pytest.param(*row, id=name) for name, *row in TABLE],
)
def test_report(
    tmp_path: Path, code: int, stderr: str, summary: str, traceback: str, rank: int | None
) -> None:
    failure = read(code, stderr, tmp_path)
    assert failure.summary == summary
    assert failure.traceback == traceback.rstrip()
    assert failure.rank == rank
    assert not failure.secondary
    assert not failure.permanent


def test_two_processes_that_fail_at_once_mix_their_lines(tmp_path: Path) -> None:
    frame = ['  File "train.py", line 1, in <module>', "    import nothing"]
    lines = [HEAD.rstrip(), *frame, "ModuleNotFoundError: No module named 'nothing'"]
    mixed = "".join(f"{line}\n{line}\n" for line in lines)
    stderr = (mixed + torchrun(rank=1)).encode()
    failure = read_failure(1, ENDED, stderr, PRINTED, str(tmp_path), lambda rank: f"w{rank}")
    assert failure.summary == "rank 1 (w1): ModuleNotFoundError: No module named 'nothing'"


@pytest.mark.parametrize(
    ("stderr", "secondary"),
    [
        pytest.param(of_rank(0, CLOSED) + torchrun(), True, id="died_of_a_peer"),
        pytest.param(
            CLOSED
            + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + NAN,
            True,
            id="and_failed_to_clean_up",
        ),
        pytest.param(CLEANUP, False, id="failed_itself_and_then_lost_its_peer"),
        pytest.param(of_rank(0, CLOSED) + of_rank(1, NAN), False, id="two_of_them"),
    ],
)
def test_an_echo_of_another_death_is_marked(tmp_path: Path, stderr: str, secondary: bool) -> None:
    assert read(1, stderr, tmp_path).secondary is secondary


def test_time_is_that_of_the_first_traceback(tmp_path: Path) -> None:
    assert read(1, NAN, tmp_path).at == PRINTED
    assert read(1, ARGPARSE, tmp_path).at == ENDED


def record(folder: Path, name: str, content: Any, at: float) -> None:
    path = folder / name / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (at, at))


def test_error_file_of_a_recorded_script_counts_most(tmp_path: Path) -> None:
    for name, text, at in (("1", CLOSED, 990.0), ("0", CHAINED, 980.0)):
        content = {"message": {"message": "x", "extraInfo": {"py_callstack": text}}}
        record(tmp_path, f"attempt_0/{name}", content, at)
    failure = read(1, NAN + torchrun(rank=2), tmp_path)
    assert failure.summary == "rank 2 (w): ConfigError: no rate in the configuration"
    assert failure.traceback == CHAINED.rstrip()
    assert failure.at == 980.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"message": "x"}', '{"message": null}'])
def test_error_file_that_makes_no_sense_is_left_out(tmp_path: Path, content: str) -> None:
    record(tmp_path, "0", content, 1.0)
    assert read(1, NAN, tmp_path).summary == "the command of w: ValueError: loss is nan"


def test_error_file_with_nothing_in_it_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, "0", {"message": {"extraInfo": {"py_callstack": ""}}}, 1.0)
    assert read(1, NAN, tmp_path).summary == "the command of w: ValueError: loss is nan"


def test_report_is_bounded(tmp_path: Path) -> None:
    """The end of a traceback is most useful; any text may follow it."""
    deep = HEAD + '  File "/job/train.py", line 1, in f\n' * 1000 + "RecursionError: too deep\n"
    failure = read(1, deep + "noise\n" * 10_000, tmp_path)
    assert failure.summary == "the command of w: RecursionError: too deep"
    assert len(failure.traceback) <= MAX_TRACEBACK_CHARS
    first, second, *_ = failure.traceback.splitlines()
    assert (first, second) == ("...", '  File "/job/train.py", line 1, in f')
    assert "RecursionError: too deep\n" in failure.traceback
    assert len(read(1, "x" * 10_000, tmp_path).summary) == 500
    long = read(1, "word " * 1000, tmp_path).summary
    assert long.endswith(" word...")
    assert len(long) <= 500
