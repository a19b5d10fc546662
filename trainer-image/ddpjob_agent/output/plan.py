"""The streams of one start of a command: which FIFOs it needs, and whose output each stream holds.

torchrun assigns the ranks, so a rank is known only by a process that it started. If the user's own
flags redirect the ranks, or run no Python, the ranks share the streams of the command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.output import streams
from ddpjob_protocol.environment import ENV_FIRST_RANK, Launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = "output"
# If the user sets one of these, as a flag or as PET_*, torchrun itself handles the ranks' output.
OWN_OUTPUT = ("redirects", "tee", "no-python", "run-path", "logs-specs", "local-ranks-filter")
OWN_OUTPUT_SHORT = ("-r", "-t")


class OutputPlan(NamedTuple):
    """The streams of one start."""

    folder: str = ""  # of the FIFOs
    ranks: int = 0  # number of local ranks with FIFOs
    rank: int | None = None  # of the command's own streams; None: unknown, or several
    has_first: bool = True  # the command's own streams may hold the output of rank 0
    shows_command: bool = True  # False: only torchrun itself writes to the command's own streams
    environment: Mapping[str, str] = {}  # for the command


def plan_output(
    argv: Sequence[str],
    environment: Mapping[str, str],
    launcher: Launcher,
    processes: int,
    logs: str,
    python: str,
) -> OutputPlan:
    """Return the plan and create its FIFOs below `logs`; raise OSError on a disk error.

    `python` runs torchrun; it is empty if the command is not torchrun itself.
    """
    if launcher is Launcher.TORCHRUN:
        if not python or _redirects(argv, environment):
            return OutputPlan()
        folder = os.path.join(logs, FOLDER)
        variables = streams.create(folder, processes, python)
        if not variables:
            return OutputPlan()
        return OutputPlan(folder, processes, shows_command=False, environment=variables)
    plain = {"PYTHONUNBUFFERED": "1"}  # as torchrun does: lines appear when they are printed
    if launcher is Launcher.MPI:
        return OutputPlan(environment=plain)
    alone = "LOCAL_RANK" in environment and environment.get("LOCAL_WORLD_SIZE") == "1"
    rank = int(environment["RANK"]) if alone else None
    is_first = environment.get(ENV_FIRST_RANK, "0") == "0"
    return OutputPlan(rank=rank, has_first=is_first, environment=plain)


def _redirects(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    if streams.ENV_PYTHON in environment:
        return True
    script = next((at for at, word in enumerate(argv) if word.endswith(".py")), len(argv))
    own = argv[:script]
    flags = [word.lstrip("-").replace("_", "-") for word in own if word.startswith("--")]
    flags += [name[4:].lower().replace("_", "-") for name in environment if name[:4] == "PET_"]
    return any(flag.startswith(OWN_OUTPUT) for flag in flags) or any(
        word.startswith(OWN_OUTPUT_SHORT) for word in own
    )
