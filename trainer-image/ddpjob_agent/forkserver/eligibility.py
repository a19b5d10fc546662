"""The commands that can start warm: those that behave alike if torch is imported in advance.

All functions are pure, except `interpreter_of`, which searches for a program and reads its first
line.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from ddpjob_protocol.environment import ENV_WARM_IMPORTS, TORCHRUN_MODULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# torchrun and ddpjob set these for each start; no import reads them. Simulated workers use different
# GPUs; a fork server that has opened one does not fork.
OF_A_START = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "NNODES", "NODE_RANK", "NPROC_PER_NODE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "GLOO_SOCKET_IFNAME", "TMPDIR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    }
)  # fmt: skip
OF_A_START_PREFIXES = ("DDPJOB_", "PET_", "TORCHELASTIC_")
# Libraries read these when they are used, not when they are imported.
READ_LATER = frozenset({"CUDA_LAUNCH_BLOCKING", "TOKENIZERS_PARALLELISM"})
READ_LATER_PREFIXES = ("NCCL_", "GLOO_", "WANDB_", "MLFLOW_")


class NotEligibleError(Exception):
    """An error for a process that must start cold; the message is the reason."""


def interpreter_of(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the Python of a torchrun command and its arguments; raise `NotEligibleError`."""
    name = os.path.basename(argv[0])
    if name == "torchrun":
        script = _find(argv[0], environment)
        return _interpreter_in(script, environment), [script, *argv[1:]]
    arguments = list(argv[1:])
    if (
        name.startswith("python")
        and arguments[:1] == ["-m"]
        and arguments[1:2]
        and arguments[1] in TORCHRUN_MODULES
    ):
        return _find(argv[0], environment), arguments
    raise NotEligibleError("the command is not torchrun")


def python_of(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the Python that runs torchrun; empty if the command is not torchrun itself."""
    try:
        return interpreter_of(argv, environment)[0]
    except NotEligibleError:
        return ""


def _find(program: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        raise NotEligibleError(f"there is no {program} on the PATH")
    return found


def _interpreter_in(script: str, environment: Mapping[str, str]) -> str:
    """Return the Python of `#!/path/python` or `#!/usr/bin/env python`, without options."""
    try:
        with open(script, "rb") as file:
            first = os.fsdecode(file.readline(1024))
    except OSError as error:
        raise NotEligibleError(f"cannot read {script}: {error.strerror}") from error
    words = first[2:].split() if first.startswith("#!") else []
    if words[:1] == ["/usr/bin/env"]:
        del words[0]
    if len(words) != 1 or not os.path.basename(words[0]).startswith("python"):
        raise NotEligibleError(f"{script} does not begin with #! and a Python")
    return _find(words[0], environment)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raise NotEligibleError unless `python ARGUMENTS` runs a .py file or a module."""
    first = arguments[0] if arguments else ""
    if first == "-m":
        if len(arguments) < 2:
            raise NotEligibleError("-m without a module")
    elif first.startswith("-"):
        raise NotEligibleError(f"Python is given {first}")
    elif not first.endswith(".py"):
        raise NotEligibleError(f"{first!r} is not a .py file")


def check_environment(imported: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise NotEligibleError if variables that matter at import differ from the fork server's.

    The fork server may have imported more modules than `wanted` names.
    """
    missing = {*preloaded_environment(wanted)} - {*preloaded_environment(imported)}
    if missing:
        raise NotEligibleError(f"{', '.join(sorted(missing))} was not imported in advance")
    for name in sorted({*imported, *wanted}):
        if _is_of_a_start(name):
            continue
        if imported.get(name) != wanted.get(name):
            raise NotEligibleError(f"{name} differs from what it was when torch was imported")


def is_read_at_import(name: str) -> bool:
    """Return whether an import may read this variable, as far as is known."""
    is_read_later = name in READ_LATER or name.startswith(READ_LATER_PREFIXES)
    return not (is_read_later or _is_of_a_start(name))


def _is_of_a_start(name: str) -> bool:
    return name in OF_A_START or name.startswith(OF_A_START_PREFIXES)


def preloaded_environment(environment: Mapping[str, str]) -> list[str]:
    """Return the modules that the user wants imported in advance, besides torch."""
    return environment.get(ENV_WARM_IMPORTS, "").split()
