"""Finds the Python script that a command runs.

May not: read files. A command through a shell, a module, and a path with variables have no script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ddpjob_operator.api.commands.torchrun_command import ALONE
from ddpjob_protocol.environment import TORCHRUN_MODULES

_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_NO_SCRIPT = ("-c", "-m", "--module", "--no-python")


def script_path(command: Sequence[str]) -> str:
    """Return the path of the script as the command has it; empty if there is none."""
    words = iter(command)
    program = _name(next(words, ""))
    if program in ("mpirun", "mpiexec"):
        program = next((name for name in map(_name, words) if _PYTHON.fullmatch(name)), "")
    if _PYTHON.fullmatch(program):
        script = _of_python(words)
    elif program == "torchrun":
        script = _of_torchrun(words)
    elif program == "accelerate" and next(words, "") == "launch":
        script = _of_accelerate(words)
    else:
        script = ""
    return script if script.endswith(".py") and "$" not in script else ""


def _of_python(words: Iterator[str]) -> str:
    for word in words:
        if word == "-m":
            return _of_torchrun(words) if next(words, "") in TORCHRUN_MODULES else ""
        if word in _NO_SCRIPT or not word.startswith("-"):
            return word
        if word in _PYTHON_FLAGS_WITH_VALUE:
            next(words, "")
    return ""


def _of_torchrun(words: Iterator[str]) -> str:
    for word in words:
        if word in _NO_SCRIPT or not word.startswith("-"):
            return word
        if "=" not in word and word.replace("_", "-") not in ALONE:
            next(words, "")
    return ""


def _of_accelerate(words: Iterable[str]) -> str:
    """Return the first script: the flags of accelerate change from version to version."""
    return next((word for word in words if word in _NO_SCRIPT or word.endswith(".py")), "")


def _name(word: str) -> str:
    return word.rsplit("/", 1)[-1]
