"""`ddpjob` in a process that is forked from this one, which has imported the command.

The start of Python and its imports cost more than what most commands do. With DDPJOB_COLD=1 each
is executed instead.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

DDPJOB = Path(sys.executable).with_name("ddpjob")
COLD = os.environ.get("DDPJOB_COLD") == "1"
COMMANDS = "ddpjob_operator.cli"
MODULES = ("entry", "main", "doctor.command", "jobs.change", "jobs.follow", "jobs.show",
           "jobs.kubernetes_import")  # fmt: skip
DESCRIPTORS = 1024  # more than this process has


class Forked(subprocess.Popen[str]):
    """A process that runs `ddpjob` with these arguments; its streams are pipes."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        _, _, _, _, folder, environment, _, _, _, *pipes = given
        ends = pipes[:6]
        self.pid = os.fork()
        if self.pid == 0:
            _become(args, folder, environment, (ends[0], ends[3], ends[5]))
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined] # as Popen's own does


def start(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command."""
    for name in MODULES:
        importlib.import_module(f"{COMMANDS}.{name}")
    pipe = subprocess.PIPE
    return (subprocess.Popen if COLD else Forked)(
        [str(DDPJOB), *arguments],
        cwd=folder,
        env=env,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def _become(
    args: Sequence[str], folder: Path, environment: Mapping[str, str], streams: tuple[int, int, int]
) -> NoReturn:
    code: object = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, DESCRIPTORS)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        logging.getLogger().handlers.clear()
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        sys.argv = list(args)
        importlib.import_module(f"{COMMANDS}.entry").main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - Python's own way to end
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code if isinstance(code, int) else int(code is not None))
