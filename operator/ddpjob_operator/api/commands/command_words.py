"""Questions about the words of a command, answered in Python and in CEL alike.

Both read word by word, up to MAX_FLAGS words before the script. They judge only commands that run
python or torchrun directly: a wrapper, such as a shell, accelerate or uv, may do anything.

In CEL, `w` is the list of words. The API server does not know how long a word of it may be, so CEL
uses no regular expression on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from ddpjob_operator.api import cel
from ddpjob_operator.api.commands.torchrun_command import runs_torchrun
from ddpjob_protocol.environment import TORCHRUN_MODULES

Words = Sequence[str]

MAX_FLAGS = 8  # each one makes the rules more expensive for the API server
PYTHON = re.compile(r"(.*/)?python[0-9.]*")
NO_SCRIPT_FOLLOWS = ("-m", "-c", "-W", "-X")  # the last two have a value
SIZE_FLAGS = ("--nnodes", "--node-rank", "--node_rank", "--standalone")
SIZE_PREFIXES = tuple(f"{flag}=" for flag in SIZE_FLAGS)
# Flags of torchrun whose value is the next word, with '-' and with '_'.
VALUE_FLAGS = (
    *("--nproc-per-node", "--nproc_per_node", "--rdzv-backend", "--rdzv_backend"),
    *("--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-id", "--rdzv_id", "--rdzv-conf", "--rdzv_conf"),
    *("--max-restarts", "--max_restarts", "--monitor-interval", "--monitor_interval"),
    *("--start-method", "--start_method", "--role", "--log-dir", "--log_dir"),
    *("-r", "--redirects", "-t", "--tee", "--local-addr", "--local_addr"),
    *("--master-addr", "--master_addr", "--master-port", "--master_port"),
)


def runs_script_alone(words: Words) -> bool:
    """Return whether the command runs a script with python, without a launcher."""
    if not words or not PYTHON.fullmatch(words[0]):
        return False
    leading = words[1 : 1 + MAX_FLAGS]
    after_flags = (word for word in leading if not _is_python_flag(word))
    return next(after_flags, "").endswith(".py")


def _is_python_flag(word: str) -> bool:
    return word.startswith("-") and not word.startswith(NO_SCRIPT_FOLLOWS)


def has_size_flag(words: Words) -> bool:
    """Return whether torchrun itself has a flag that fixes the number of workers."""
    if not runs_torchrun(words):
        return False
    start = 1 if words[0].rsplit("/", 1)[-1] == "torchrun" else 3
    for i in range(start, min(start + MAX_FLAGS, len(words))):
        if words[i] in SIZE_FLAGS or words[i].startswith(SIZE_PREFIXES):
            return True
        if not (words[i].startswith("-") or (i > start and words[i - 1] in VALUE_FLAGS)):
            return False
    return False


# --- in CEL --------------------------------------------------------------------------------------


def is_python(word: str) -> str:
    """Return CEL that is true for the name of a Python interpreter."""
    return cel.matches(word, PYTHON)


def holds(words: str, condition: str) -> str:
    """Return CEL that is true if the condition holds for the words."""
    return f"[{words}].exists(w, {condition})"


def _begins_with(word: str, prefixes: Iterable[str]) -> str:
    return "(" + " || ".join(f"{word}.startsWith('{prefix}')" for prefix in prefixes) + ")"


def _is_one_of(word: str, values: Iterable[str]) -> str:
    return f"{word} in [{', '.join(map(repr, values))}]"


def _scan(start: int, found: Callable[[str], str], passes: Callable[[int], str]) -> str:
    """Return CEL that looks at each word, as long as the words before it let it pass."""
    text = ""
    for i in reversed(range(start, start + MAX_FLAGS)):
        further = f" || ({passes(i)} && {text})" if text else ""
        text = f"(size(w) > {i} && ({found(f'w[{i}]')}{further}))"
    return text


def _fixes_size(word: str) -> str:
    return f"{_is_one_of(word, SIZE_FLAGS)} || {_begins_with(word, SIZE_PREFIXES)}"


def _size_flags_from(start: int) -> str:
    def passes(i: int) -> str:
        flag = f"w[{i}].startsWith('-')"
        value = _is_one_of(f"w[{i - 1}]", VALUE_FLAGS)
        return flag if i == start else f"({flag} || {value})"

    return _scan(start, _fixes_size, passes)


_BY_NAME = "(w[0] == 'torchrun' || w[0].endsWith('/torchrun'))"
_BY_MODULE = f"(size(w) > 2 && w[1] == '-m' && {_is_one_of('w[2]', TORCHRUN_MODULES)})"
RUNS_TORCHRUN = f"size(w) > 0 && ({_BY_NAME} || {_BY_MODULE})"
HAS_SIZE_FLAG = (
    f"size(w) > 0 && ({_BY_NAME} ? {_size_flags_from(1)} : ({_BY_MODULE} && {_size_flags_from(3)}))"
)
SCRIPT_FOLLOWS = _scan(
    1,
    lambda word: f"({word}.endsWith('.py') && !{word}.startsWith('-'))",
    lambda i: f"(w[{i}].startsWith('-') && !{_begins_with(f'w[{i}]', NO_SCRIPT_FOLLOWS)})",
)
