"""`ddpjob` in a process that is forked from this one, which has imported the command.

The start of Python and its imports cost more than what most commands do. With DDPJOB_COLD=1 each
is executed instead.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil

DDPJOB = Path(sys.executable).with_name("ddpjob")
COLD = os.environ.get("DDPJOB_COLD") == "1"
COMMANDS = "ddpjob_operator.cli"
LOCAL = ("entry", "main", "local")
OF_CLUSTER = ("entry", "main", "doctor.command", "jobs.change", "jobs.follow", "jobs.show",
              "jobs.kubernetes_import")  # fmt: skip
DESCRIPTORS = 1024  # more than this process has


class Forked(subprocess.Popen[str]):
    """A process that runs `ddpjob` with these arguments; its streams are pipes."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        _, _, _, _, folder, environment, _, _, _, *pipes = given
        ends = pipes[:6]
        self.pid = _fork(args, folder, environment, (ends[0], ends[3], ends[5]))
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined] # as Popen's own does


def start(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command for a cluster."""
    _import(OF_CLUSTER)
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


def start_local(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    output: IO[bytes],
    *,
    executed: bool = False,
) -> psutil.Process:
    """Start a command that runs jobs here, whose output streams are both `output`."""
    if executed or COLD:
        return psutil.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    _import(LOCAL)
    with Path(os.devnull).open("rb") as nothing:
        streams = (nothing.fileno(), output.fileno(), output.fileno())
        return psutil.Process(_fork(command, folder, env, streams))


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(f"{COMMANDS}.{name}")


def _fork(
    args: Sequence[str], folder: Path, environment: Mapping[str, str], streams: tuple[int, int, int]
) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads of pytest do not matter
        pid = os.fork()
    if pid == 0:
        _become(args, folder, environment, streams)
    return pid


def _become(
    args: Sequence[str], folder: Path, environment: Mapping[str, str], streams: tuple[int, int, int]
) -> NoReturn:
    code: object = 1
    gc.freeze()  # no object of pytest may close a descriptor here
    faulthandler.disable()
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, DESCRIPTORS)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tempfile.tempdir = None
        warnings.simplefilter("ignore")
        logging.getLogger().handlers.clear()
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", 1)  # noqa: SIM115
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
