"""Finds the launcher of a command, and removes the flags of torchrun that ddpjob sets itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ddpjob_operator.api.commands.torchrun_command import inelastic_flags, runs_torchrun

SET_BY_DDPJOB = re.compile(
    r"--(nnodes|max-restarts|node-rank|master-(addr|port)|rdzv-.*|standalone)"
)
PROCESSES = "--nproc-per-node"
FLAGS = re.compile(r"--?[a-z][-_a-z]*(=.*)?")
WITHOUT_VALUE = ("--standalone", "--no-python", "--run-path", "--module", "-m")
MPIRUN = ("mpirun", "mpiexec", "horovodrun")


class Command(NamedTuple):
    """A command for a DDPJob."""

    words: tuple[str, ...]
    launcher: str
    processes: str = ""  # value of --nproc-per-node
    removed: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()  # warnings about flags that stay, inside a line for a shell


def convert_command(words: Sequence[str]) -> Command:
    """Return the command without the flags that would fix the size of the job."""
    if not runs_torchrun(words):
        if any("torchrun" in word or "torch.distributed.run" in word for word in words):
            return Command(tuple(words), "torchrun", pinned=inelastic_flags(words))
        program = words[0].rsplit("/", 1)[-1] if words else ""
        return Command(tuple(words), "mpi" if program in MPIRUN else "python")
    start = 1 if words[0].rsplit("/", 1)[-1] == "torchrun" else 3
    kept, removed, processes = list(words[:start]), [], ""
    at = start
    while at < len(words) and FLAGS.fullmatch(words[at]):
        flag, equals, value = words[at].partition("=")
        name = flag.replace("_", "-")
        has_value = not equals and name not in WITHOUT_VALUE and at + 1 < len(words)
        width = 2 if has_value else 1
        given = list(words[at : at + width])
        if SET_BY_DDPJOB.fullmatch(name):
            removed.append(" ".join(given))
        elif name == PROCESSES:
            processes = value if equals else given[-1]
        else:
            kept += given
        at += width
        if name in ("-m", "--module"):  # the next word is the script
            break
    return Command((*kept, *words[at:]), "torchrun", processes, tuple(removed))
