"""Warnings about valid jobs: settings that are seldom intended.

`ddpjob validate` prints them, and the operator shows them in the status of a running job. A command
through a shell may be intended, so it is never rejected here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddpjob_operator.api import cel
from ddpjob_operator.api.commands import mpirun_command
from ddpjob_operator.api.commands.command_words import PYTHON
from ddpjob_operator.api.commands.torchrun_command import inelastic_flags
from ddpjob_operator.api.commands.wrapped_command import unwrap
from ddpjob_operator.api.problem import Path
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.api.spec.worker_groups import Group
from ddpjob_protocol.environment import TORCHRUN_MODULES
from ddpjob_protocol.messages.warnings import WarningReason

# Modules that start processes themselves.
LAUNCHER_MODULES = (
    *TORCHRUN_MODULES,
    "torch.distributed.launcher",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "horovod.runner.launch",
    "lightning",
    "pytorch_lightning",
)
# A command that names one of these variables forms the group itself.
OWN_GROUP = ("MASTER_ADDR", "NODE_RANK")


class SpecWarning(NamedTuple):
    """A setting that is valid and seldom intended."""

    reason: WarningReason
    message: str  # what it does, and the remedy
    path: Path = ()


def find_warnings(job: DDPJob) -> Iterator[SpecWarning]:
    """Yield the warnings about a job."""
    spec = job.spec
    if spec.sagemaker is not None and spec.sagemaker.model is None:
        text = "sagemaker.model is missing: the files in SM_MODEL_DIR are deleted with their pod"
        yield SpecWarning(WarningReason.MODEL_NOT_KEPT, text, ("spec", "sagemaker"))
    groups = spec.groups()
    several = sum(group.maximum * group.processes for group in groups) > 1
    for i, group in enumerate(groups):
        path = ("spec", cel.GROUPS, i - 1, "command") if i else ("spec", "command")
        for found in _of_command(spec.resolved_launcher, group, several=several):
            yield SpecWarning(found.reason, f"{group.name}: {found.message}", path)


def _of_command(launcher: str, group: Group, *, several: bool) -> Iterator[SpecWarning]:
    if launcher == "mpi":
        for message in mpirun_command.find_warnings(group.command):
            yield SpecWarning(WarningReason.SIZE_FIXED, message)
        return
    for message in inelastic_flags(group.command):
        yield SpecWarning(WarningReason.SIZE_FIXED, message)
    if launcher == "torchrun" and several and (alone := _alone(group.command)):
        yield SpecWarning(WarningReason.NOT_DISTRIBUTED, alone)


def _alone(command: Sequence[str]) -> str:
    """Return a warning if the command runs a script or a module with python; or no text."""
    if any(name in part for name in OWN_GROUP for part in command):
        return ""
    program, *arguments = unwrap(command) or [""]
    if not PYTHON.fullmatch(program):
        return ""
    found = _script_or_module(arguments)
    if not found or found[-1] in LAUNCHER_MODULES:
        return ""
    lonely = f"{program} runs {found[-1]} as a single process without a process group"
    wrapped = program != command[0]
    use = f"`torchrun {' '.join(found)}` there" if wrapped else f"[torchrun, {', '.join(found)}]"
    return f"{lonely}; use {use}, or launcher: python if it forms the group itself"


def _script_or_module(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the script or the module with its -m among python's arguments; empty if none."""
    words = iter(arguments)
    for word in words:
        if word == "-m":
            return ("-m", next(words, ""))
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-"):
            return (word,) if word.endswith(".py") else ()
    return ()
