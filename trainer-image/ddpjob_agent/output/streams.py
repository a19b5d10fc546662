"""The FIFOs of the ranks below one torchrun: made by the agent, opened by each rank at its start.

A cold torchrun executes a small script in place of Python (PYTHON_EXEC), which opens the FIFOs. A
forked torchrun opens them itself. Each rank records the rank that torchrun assigned.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_protocol.environment import ENV_OUTPUT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENV_PYTHON = "PYTHON_EXEC"  # torchrun starts this in place of its own Python
STREAMS = ("out", "err")
SCRIPT = f"""#!/bin/sh
folder=${ENV_OUTPUT_FOLDER}
unset {ENV_PYTHON} {ENV_OUTPUT_FOLDER}
if [ -p "$folder/$LOCAL_RANK.err" ]; then
    echo "$RANK" > "$folder/$LOCAL_RANK.rank"
    exec PYTHON "$@" > "$folder/$LOCAL_RANK.out" 2> "$folder/$LOCAL_RANK.err"
fi
exec PYTHON "$@"
"""


class RankStart(NamedTuple):
    """The start of a rank: arguments and environment without our changes, stdout and stderr."""

    arguments: list[str]
    environment: dict[str, str]
    streams: tuple[int, int] | None


def create(folder: str, ranks: int, python: str) -> dict[str, str]:
    """Create the FIFOs and the script; return variables for torchrun, none if it cannot run."""
    os.mkdir(folder)
    script = os.path.join(folder, "python")
    with open(script, "w", encoding="utf-8") as file:
        file.write(SCRIPT.replace('PYTHON "$@"', f'{shlex.quote(python)} "$@"'))
    os.chmod(script, 0o700)
    if not os.access(script, os.X_OK):  # the file system forbids execution
        return {}
    for rank in range(ranks):
        for stream in STREAMS:
            os.mkfifo(path_of(folder, rank, stream))
    return {ENV_PYTHON: script, ENV_OUTPUT_FOLDER: folder}


def path_of(folder: str, local_rank: int, stream: str) -> str:
    """Return the path of a FIFO."""
    return os.path.join(folder, f"{local_rank}.{stream}")


def rank_of(folder: str, local_rank: int) -> int | None:
    """Return the rank that torchrun assigned; None if the rank has not started."""
    try:
        with open(os.path.join(folder, f"{local_rank}.rank"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def open_for(python: str, arguments: Sequence[str], environment: Mapping[str, str]) -> RankStart:
    """Do what the script does, for a forked rank; the caller closes the streams."""
    folder = environment.get(ENV_OUTPUT_FOLDER, "")
    if not folder or arguments[0] != environment.get(ENV_PYTHON):
        return RankStart(list(arguments), dict(environment), None)
    ours = (ENV_PYTHON, ENV_OUTPUT_FOLDER)
    plain = {name: value for name, value in environment.items() if name not in ours}
    local = int(environment["LOCAL_RANK"])
    with open(os.path.join(folder, f"{local}.rank"), "w", encoding="ascii") as file:
        file.write(environment["RANK"])
    out, err = (os.open(path_of(folder, local, stream), os.O_WRONLY) for stream in STREAMS)
    return RankStart([python, *arguments[1:]], plain, (out, err))
