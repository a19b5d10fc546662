"""`ddpjob snapshots`: runs the command of the trainer library, which reads snapshots."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec

import typer

from ddpjob_operator.cli.common import CommandError, ExitCode

WITHOUT_TORCH = ("list", "-h", "--help")


def snapshots(context: typer.Context) -> None:
    """List, verify, prune and export snapshots: `ddpjob snapshots --help`."""
    needed = ["ddpjob_trainer"]
    if context.args and context.args[0] not in WITHOUT_TORCH:
        needed.append("torch")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise CommandError(
            ExitCode.INVALID,
            f"snapshots are read by {missing[0]}, and there is no {missing[0]} here: run this "
            "where the training runs, as `python3 -m ddpjob_trainer`",
        )
    sys.argv = ["ddpjob snapshots", *context.args]
    runpy.run_module("ddpjob_trainer", run_name="__main__", alter_sys=True)
