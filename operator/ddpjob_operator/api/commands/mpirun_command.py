"""Finds mpirun and its flags for the number of processes in a user's command.

May not: change the command; the user's own flags take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddpjob_operator.api.commands.torchrun_command import split

PROGRAMS = re.compile(r"(.*/)?(mpirun|mpiexec|orterun|prterun)([.]\w+)?")  # Debian: mpirun.openmpi
SIZES = ("-np", "--np", "-n", "--n", "-c")


def find_warnings(command: Sequence[str]) -> tuple[str, ...]:
    """Return warnings about commands that are valid for `launcher: mpi` but seldom intended."""
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
    """Yield mpirun's flags for the number of processes; ignore those of its program."""
    for word in words:
        if re.fullmatch(r"(.*/)?python[0-9.]*|.*[.]py", word):
            return
        if word in SIZES:
            yield f"{word} {next(words, '')}".strip()
