"""What a user's own command line says about mpirun, and about the size of the job.

May not: change the command; the user's own flags win.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpjob_operator.api.torchrun_command import split

PROGRAMS = re.compile(r"(.*/)?(mpirun|mpiexec|orterun|prterun)([.]\w+)?")  # Debian: mpirun.openmpi
SIZES = ("-np", "--np", "-n", "--n", "-c")


def find_warnings(command: Sequence[str]) -> tuple[str, ...]:
    """Warnings about what is allowed below `launcher: mpi`, and seldom meant."""
    words = iter([word for part in command for word in split(part)])
    if not any(PROGRAMS.fullmatch(word) for word in words):
        lonely = f"{command[0]} runs as a single process at the first worker"
        return (f"{lonely}; put mpirun before it, which starts it in every slot of all workers",)
    return tuple(
        f"{flag} pins the number of processes; remove it: without it mpirun starts one for each "
        "slot of the workers that there are"
        for flag in _sizes(words)
    )


def _sizes(words: Iterator[str]) -> Iterator[str]:
    """mpirun's own flags for that, up to the program that it runs."""
    for word in words:
        if re.fullmatch(r"(.*/)?python[0-9.]*|.*[.]py", word):
            return
        if word in SIZES:
            yield f"{word} {next(words, '')}".strip()
