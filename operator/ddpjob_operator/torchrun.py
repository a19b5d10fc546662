"""What a user's own torchrun command line says about the size of the job.

May not: change the command; the user's own flags win.
"""

from __future__ import annotations

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


def _flags(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """torchrun's own flags, up to the script: (name as in PINS, as the user wrote it)."""
    words = iter([word for part in command for word in _split(part)])
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


def _split(part: str) -> list[str]:
    if " " not in part:
        return [part]
    try:
        return shlex.split(part)
    except ValueError:
        return part.split()
