"""What a user's own command line says about torchrun, and about the size of the job.

May not: change the command; the user's own flags win.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

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
MODULES = ("torch.distributed.run", "torch.distributed.launch")


def inelastic_flags(command: Sequence[str]) -> tuple[str, ...]:
    """One warning for each flag with which the command keeps the job from changing its size."""
    return tuple(
        f"{flag} pins {PINS[name]}; remove it: ddpjob sets it anew whenever the workers change"
        for name, flag in _flags(command)
        if name in PINS
    )


def runs_torchrun(command: Sequence[str]) -> bool:
    """Whether that is what the command runs; a shell's own command is not looked into."""
    first, flag, module = (*command, "", "", "")[:3]
    return first.rsplit("/", 1)[-1] == "torchrun" or (flag == "-m" and module in MODULES)


def is_standalone(command: Sequence[str]) -> bool:
    """Whether torchrun is told to look for no other worker."""
    return any(name == "--standalone" for name, _ in _flags(command))


def single_process_script(command: Sequence[str]) -> tuple[str, ...]:
    """A warning if torchrun is meant to start the processes, and nobody starts torchrun."""
    first, *rest = command
    script = next((word for word in rest if not word.startswith("-") or word == "-m"), "")
    if not re.fullmatch(r"python[0-9.]*", first.rsplit("/", 1)[-1]) or not script.endswith(".py"):
        return ()
    lonely = f"{first} runs {script} as a single process that knows of no other one"
    remedy = f"use [torchrun, {script}], or launcher: python if it finds the others by itself"
    return (f"{lonely}; {remedy}",)


def _flags(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """torchrun's own flags, up to the script: (name as in PINS, as the user wrote it)."""
    words = iter([word for part in command for word in split(part)])
    for word in words:
        if word.rsplit("/", 1)[-1] == "torchrun" or word in MODULES:
            break
    for word in words:
        if not word.startswith("-") or word == "--":
            return
        flag, equals, _ = word.partition("=")
        name = flag.replace("_", "-")
        value = "" if equals or name in ALONE else next(words, "")
        yield name, f"{word} {value}".strip()


def split(part: str) -> list[str]:
    """A part of a command, as a shell would take it if it is one."""
    if " " not in part:
        return [part]
    try:
        return shlex.split(part)
    except ValueError:
        return part.split()
