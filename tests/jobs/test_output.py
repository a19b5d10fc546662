"""What the screen shows of a job: the ranks' own lines, each failure once, and a progress bar."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_operator.cli.common import ExitCode
from support.command import DDPJOB, RUN, run_to_end, started, write_job
from support.driving import environment

# Prints the rank that torchrun assigned; the second membership completes.
RANKS = """
    import os, pathlib, sys, time
    rank, out = os.environ["RANK"], pathlib.Path("ranks")
    print("step of", rank)
    print("warning of", rank, file=sys.stderr)
    print("\\r10%", end="", file=sys.stderr)
    time.sleep(0.3)
    print("\\r100%", file=sys.stderr)
    out.mkdir(exist_ok=True)
    first = out / "first"
    try:
        (out / f"again{rank}").open("x").close()
    except FileExistsError:
        print("last of", rank, end="")
        raise SystemExit from None
    while len(list(out.iterdir())) < 4:
        time.sleep(0.05)
    raise ValueError("all ranks fail alike")
"""
BUDGET = {"failurePolicy": "{maxRestarts: {application: 1}, backoffSeconds: 0.1}"}
WORKERS = {"replicas": 2, "processesPerWorker": 2}


def shown(text: str) -> list[tuple[str, str]]:
    """Label and text of the lines of ranks."""
    return re.findall(r"^\[(\S+ \d+)\] (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_ranks_below_torchrun(tmp_path: Path, warm: bool) -> None:
    """Rank 0 and all of stderr are shown, warm; all ranks, cold; the logs have everything."""
    elastic = f"{{joinPolicy: Immediate, settleSeconds: 0.2, warmStart: {str(warm).lower()}}}"
    write_job(tmp_path, "[torchrun, train.py]", RANKS, **WORKERS, **BUDGET, elastic=elastic)
    options = () if warm else ("--logs", "all")
    code, command = run_to_end(tmp_path, *RUN, *options)
    assert code == ExitCode.OK, command.output
    lines = shown(command.output)
    texts = Counter(text for _, text in lines)
    visible = {0} if warm else {0, 1, 2, 3}
    for rank in range(4):
        assert texts[f"step of {rank}"] == (2 if rank in visible else 0)
        assert texts[f"warning of {rank}"] == 2
        assert texts[f"last of {rank}"] == (1 if rank in visible else 0), "without an end of line"
        assert command.logs.count(f"step of {rank}\n") == 2
        assert command.logs.count(f"warning of {rank}\n") == 2
    for label, text in lines:
        if text.startswith(("step of", "warning of", "last of")):
            assert label.split()[1] == text.split()[-1], "the rank that torchrun assigned"
    head = command.output.splitlines()[1]
    assert head.startswith(f"logs: {command.state}/logs/WORKER.log; here: ")
    assert command.output.count("Traceback (most recent call last)") == 1
    assert texts["ValueError: all ranks fail alike"] == 1
    again = "ValueError: all ranks fail alike (the same traceback as above)"
    assert texts[again] <= 3, "of the other ranks, unless torchrun ends them first"
    assert "ChildFailedError" not in command.output
    assert "ChildFailedError" in command.logs
    assert "\x1b" not in command.output
    assert "PYTHON_EXEC" not in command.logs
    assert re.search(r"failed +membership 2: world size 4; restarted after that", command.output)
    assert "trying again" not in command.logs


def test_ranks_of_mpirun_share_the_lines_of_the_first_worker(tmp_path: Path) -> None:
    script = "import os\nprint('rank', os.environ['OMPI_COMM_WORLD_RANK'])\n"
    write_job(tmp_path, "[mpirun, python3, train.py]", script, replicas=2, launcher="mpi")
    code, command = run_to_end(tmp_path)
    assert code == ExitCode.OK, command.output
    assert sorted(re.findall(r"^\[worker-000\] rank .$", command.output, re.MULTILINE)) == [
        "[worker-000] rank 0",
        "[worker-000] rank 1",
    ]


# Prints more than all buffers hold, if nothing reads; then little, until `end` appears.
FLOOD = """
    import pathlib, sys, time
    for number in range(100_000):
        print("x" * 300, file=sys.stderr if number % 2 else sys.stdout)
    pathlib.Path("flooded").touch()
    while not pathlib.Path("end").exists():
        print("more")
        time.sleep(0.05)
    print("the last line")
"""


def test_a_screen_that_stands_still_blocks_no_rank(tmp_path: Path) -> None:
    write_job(tmp_path, "[torchrun, train.py]", FLOOD, replicas=1, processesPerWorker=1)
    with started(tmp_path) as command:
        command.until(lambda: "started" in command.output, "a membership")
        command.process.send_signal(signal.SIGSTOP)
        try:
            command.until((tmp_path / "flooded").exists, "the script has printed all")
        finally:
            command.process.send_signal(signal.SIGCONT)
        dropped = "bytes were not shown here; the log has them"
        command.until(lambda: dropped in command.output, "the number of dropped bytes")
        (tmp_path / "end").touch()
        assert command.wait() == ExitCode.OK
    assert command.output.count("the last line") == 1
    assert command.logs.count("x" * 300 + "\n") == 100_000


# Reports steps until the file `end` appears.
STEPS = """
    import json, os, pathlib, socket, time
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    end, step = pathlib.Path("end"), 0
    while not end.exists():
        step += 1
        report = {"event": "step", "step": step, "total": 1000, "metrics": {"loss": 0.5}}
        agent.sendto(json.dumps(report).encode(), os.environ["DDPJOB_REPORT_SOCKET"])
        if step % 10 == 0:
            print("at", step)
        time.sleep(0.02)
"""


@pytest.fixture
def plain_job(tmp_path: Path) -> Path:
    write_job(tmp_path, "[python3, train.py]", STEPS, replicas=1)
    return tmp_path


def test_a_reader_that_ends_does_not_end_the_training(plain_job: Path) -> None:
    with subprocess.Popen(
        [DDPJOB, *RUN], cwd=plain_job, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("job probe: 1 worker, 1 node, state in ")
        process.stdout.close()
        timeline = plain_job / ".ddpjob" / "default" / "probe" / "timeline.jsonl"
        while process.poll() is None and not (
            timeline.exists() and "of 1000" in timeline.read_text()
        ):
            pass
        (plain_job / "end").touch()
        assert process.wait() == ExitCode.OK
        assert process.stderr.read() == ""
    last = json.loads(timeline.read_text().splitlines()[-1])
    assert last["kind"] == "Complete"


@pytest.mark.parametrize("streams", [">/dev/full 2>/dev/full", ">&- 2>&- <&-"])
def test_a_run_whose_output_nobody_can_read_completes(plain_job: Path, streams: str) -> None:
    (plain_job / "end").touch()
    code, command = run_to_end(plain_job, *RUN, prefix=("sh", "-c", f'exec "$@" {streams}', "sh"))
    assert code == ExitCode.OK
    assert command.output == ""
    timeline = (command.state / "timeline.jsonl").read_text()
    assert json.loads(timeline.splitlines()[-1])["kind"] == "Complete"
    assert (command.state / "lock").read_text().isdigit(), "no line went into another file"


def test_quiet_prints_the_result_only(plain_job: Path) -> None:
    (plain_job / "end").touch()
    code, command = run_to_end(plain_job, *RUN, "--quiet")
    assert code == ExitCode.OK
    assert re.fullmatch(r"\d\d:\d\d\.\d  Complete  *\n", command.output)


def test_a_terminal_has_a_bar_below_the_lines_and_its_end_is_a_planned_stop(
    plain_job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the terminal closes, SIGHUP ends the run as Ctrl-C does; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="hup-") as scratch:
        monkeypatch.setenv("TMPDIR", scratch)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(plain_job)
            os.execve(DDPJOB, [DDPJOB, *RUN], environment())
        printed = ""
        for text in read(terminal):
            printed += text
            if "at 20" in printed and "steps/s" in printed:
                break
        assert "world size 1" in printed.partition("steps/s")[0].rpartition("of 1000")[2]
        assert re.search(r"started .*membership 1: world size 1", printed)
        assert re.search(r"\x1b\[[39]\dm\[worker-000 0\] \x1b\[0mat 10", printed)
        os.kill(pid, signal.SIGHUP)
        printed += "".join(read(terminal))
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == ExitCode.INTERRUPTED
        assert re.search(r"stopped; .*: ddpjob run --local job.yaml\r\n", printed)
        assert not list(Path(scratch).iterdir())


def read(terminal: int) -> Iterator[str]:
    """Yield what is printed until the program ends."""
    while True:
        try:
            yield os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            return
