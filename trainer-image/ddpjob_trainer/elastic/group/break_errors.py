"""Which exceptions torch raises because a process group failed; decided by type and origin.

Backends raise two kinds of exceptions. torch's own have the type DistError. gloo's arrive as plain
RuntimeErrors: C++ raised them, and they begin with the path of gloo's source file. The words of a
message decide nothing, because a script's error may contain any word.
"""

from __future__ import annotations

import dis
import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_GLOO_SOURCE = re.compile(  # torch puts words before it if DDP exchanges gradients by a hook
    r"(Got the following error when running the callback: RuntimeError: )?\[/\S*/gloo/\S+:\d+\] "
)
_TORCH = Path(torch.__file__).parent
_FOLDERS = tuple(f"{_TORCH / each}/" for each in ("distributed", "autograd", "nn/parallel"))
_RAISES = {dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}


class GroupAbortedError(distributed.DistBackendError):
    """The group was aborted, so what its collectives returned is unknown."""


def is_group_error(error: BaseException) -> bool:
    """Return whether a process group raised the error, or the error that it follows from."""
    return any(_is_from_group(each) for each in _chain(error))


def may_be_group_error(error: BaseException) -> bool:
    """Return whether torch's distributed part or its backward raised the error, whatever it means.

    Other backends than gloo and NCCL may report a lost peer so. So does a script's mistake.
    """
    return any(_is_from_torch(each) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__ if at.__suppress_context__ else at.__cause__ or at.__context__


def _is_from_group(error: BaseException) -> bool:
    if isinstance(error, distributed.DistError):
        return True
    if type(error) is not RuntimeError or not _GLOO_SOURCE.match(str(error)):
        return False
    at = _innermost(error)
    return at is not None and not _is_raised_in_python(at)


def _is_from_torch(error: BaseException) -> bool:
    at = _innermost(error)
    if at is None or not isinstance(error, (RuntimeError, ValueError)):
        return False
    return at.tb_frame.f_code.co_filename.startswith(_FOLDERS)


def _innermost(error: BaseException) -> TracebackType | None:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at


def _is_raised_in_python(at: TracebackType) -> bool:
    """Return whether a `raise` statement raised the error, not a function of C++."""
    return at.tb_frame.f_code.co_code[at.tb_lasti] in _RAISES
