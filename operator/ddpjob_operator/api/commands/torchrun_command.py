"""Finds torchrun and its flags for the size of the job in a user's command.

May not: change the command; the user's own flags take precedence.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ddpjob_protocol.environment import TORCHRUN_MODULES

PINS = {
    "--nnodes": "the number of workers",
    "--nproc-per-node": "the number of processes of each worker",
    "--standalone": "the job to a single worker",
    "--node-rank": "the rank of the worker",
    "--rdzv-backend": "the rendezvous",
    "--rdzv-endpoint": "the rendezvous",
    "--master-addr": "the rendezvous",
    "--master-port": "the rendezvous",
}
ALONE = ("--standalone", "--no-python", "--run-path", "--module", "-m", "--virtual-local-rank")


def inelastic_flags(command: Sequence[str]) -> tuple[str, ...]:
    """Return one warning for each flag that prevents the job from changing its size."""
    return tuple(
        f"{flag} pins {PINS[name]}; remove it: ddpjob sets it for each membership"
        for name, flag in _flags(command)
        if name in PINS
    )


def runs_torchrun(command: Sequence[str]) -> bool:
    """Return whether the command starts torchrun itself, not through a shell."""
    first, flag, module = (*command, "", "", "")[:3]
    return first.rsplit("/", 1)[-1] == "torchrun" or (flag == "-m" and module in TORCHRUN_MODULES)


def is_standalone(command: Sequence[str]) -> bool:
    """Return whether the command has torchrun's flag --standalone."""
    return any(name == "--standalone" for name, _ in _flags(command))


def _flags(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield torchrun's flags before the script: (name as in PINS, the user's spelling)."""
    words = iter([word for part in command for word in split(part)])
    for word in words:
        if word.rsplit("/", 1)[-1] == "torchrun" or word in TORCHRUN_MODULES:
            break
    for word in words:
        if not word.startswith("-") or word == "--":
            return
        flag, equals, _ = word.partition("=")
        name = flag.replace("_", "-")
        value = "" if equals or name in ALONE else next(words, "")
        yield name, f"{word} {value}".strip()


def split(part: str) -> list[str]:
    """Split a part of a command into words as a shell does."""
    if " " not in part:
        return [part]
    try:
        return shlex.split(part)
    except ValueError:
        return part.split()
