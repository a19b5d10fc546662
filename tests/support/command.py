"""Runs the real `ddpjob` command in a folder: its output, its report, its processes, its end.

It is forked from pytest, except where `executed` or a prefix is given, and with DDPJOB_COLD=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddpjob_operator.cli import main
from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER
from ddpjob_operator.local.simulated.processes import marked, sweep
from support.driving import PATIENCE_SECONDS, SCRIPT, environment, job_text
from support.forked_command import start_local

DDPJOB = str(Path(sys.executable).with_name("ddpjob"))
RUN = ("run", "--local", "job.yaml")
ENDING_SECONDS = 30.0  # for processes that were killed
QUICK = {"elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}"}


def write_job(folder: Path, command: str, script: str = SCRIPT, **spec: object) -> None:
    """A job file `job.yaml` and its script `train.py`."""
    launcher = {} if "torchrun" in command else {"launcher": "python"}
    (folder / "job.yaml").write_text(job_text(command, **{**QUICK, **launcher, **spec}))
    (folder / "train.py").write_text(textwrap.dedent(script))


class Command:
    """One `ddpjob` process; at the end of `started` nothing of its job may be left."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        prefix: Sequence[str] = (),
        *,
        executed: bool = False,
    ) -> None:
        given = environment()
        if prefix:  # another namespace, it may be, which a fork server elsewhere does not share
            given.pop(ENV_FORKSERVER, None)
        self.state = folder / ".ddpjob" / "default" / "probe"
        self._output = folder / f"output-{time.monotonic_ns()}.txt"
        with self._output.open("wb") as output:
            self.process = start_local(
                [*prefix, DDPJOB, *arguments], folder, given, output,
                executed=executed or bool(prefix),
            )  # fmt: skip

    @property
    def output(self) -> str:
        """Return its output so far."""
        return self._output.read_text(errors="replace")

    @property
    def report(self) -> dict[str, Any]:
        """The rendezvous service's last report; empty before this run has one."""
        if not self.output.startswith("job probe: "):
            return {}  # what lies there may be an earlier run's
        try:
            report: dict[str, Any] = json.loads((self.state / "report.json").read_text())
        except FileNotFoundError:
            return {}
        return report

    @property
    def causes(self) -> list[str]:
        """Return the causes of all memberships."""
        return [each["cause"] for each in self.report["memberships"]]

    @property
    def logs(self) -> str:
        """Return the logs of the workers."""
        return "\n".join(p.read_text() for p in sorted((self.state / "logs").glob("*worker*.log")))

    def processes(self) -> list[psutil.Process]:
        """Whatever runs for the job, by its mark."""
        try:
            uid = (self.state / "uid").read_text()
        except FileNotFoundError:
            return []
        return marked(uid)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}\n{self.output}\n{self.report}"
            time.sleep(0.05)

    def until_stepping(self) -> None:
        """Wait until the processes have done steps."""

        def stepping() -> bool:
            assert self.process.is_running(), self.output
            return bool(self.report.get("step"))

        self.until(stepping, "steps")

    def kill(self) -> None:
        """End it if it still runs."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """The exit code."""
        return int(self.process.wait(PATIENCE_SECONDS))


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), executed: bool = False
) -> Iterator[Command]:
    """`ddpjob` with these arguments, `run --local job.yaml` without any."""
    command = Command(folder, arguments or RUN, prefix, executed=executed)
    try:
        yield command
    finally:
        command.kill()
        _, left = psutil.wait_procs(command.processes(), timeout=ENDING_SECONDS)
        if left:
            sweep((command.state / "uid").read_text())
        assert not left, f"left running: {left}"


def run_to_end(
    folder: Path, *arguments: str, prefix: Sequence[str] = (), executed: bool = False
) -> tuple[int, Command]:
    """Exit code of a command that ends by itself."""
    with started(folder, *arguments, prefix=prefix, executed=executed) as command:
        code = command.wait()
    return code, command


def in_process(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
) -> tuple[object, str]:
    """Exit code and output of a command that starts nothing, without a process of its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["ddpjob", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    printed = capsys.readouterr()
    return end.value.code, printed.out + printed.err


def on_small_disk(folder: Path) -> list[str]:
    """Prefix of a command that sees `folder` as a disk of 1 MiB, which ends with the command."""
    folder.mkdir(parents=True)
    mount = f'mount -t tmpfs -o size=1m tmpfs "{folder}" && exec "$@"'
    user = ["--user", "--map-root-user"] if os.geteuid() != 0 else []
    return ["unshare", *user, "--mount", "sh", "-c", mount, "sh"]


def without_capabilities() -> list[str]:
    """Prefix of a command that the permissions of folders apply to, root's too."""
    return ["setpriv", "--bounding-set=-all"] if os.geteuid() == 0 else []
