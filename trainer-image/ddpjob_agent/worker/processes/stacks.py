"""Collects the stacks of a worker's processes, for a job that hangs.

Processes with the trainer library write their Python stacks to a file of their start when they get
STACK_SIGNAL. Of the others, and of a stopped process, the kernel reports where they wait, as far as
this worker may read it. The whole text goes to the worker's log, a shortened one to the service.
"""

from __future__ import annotations

import asyncio
import glob
import logging
import os
import stat
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.worker.processes.process_tree import descendants
from ddpjob_protocol.messages.process import STACK_FILE, STACK_SIGNAL
from ddpjob_protocol.messages.warnings import MAX_STACKS
from ddpjob_protocol.text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddpjob_protocol.messages.agent import Message

WAIT_SECONDS = 5.0  # for the stacks of all processes
POLL_SECONDS = 0.1
MAX_BYTES = 64 << 10  # of one process
MAX_PROCESSES = 64
CURRENT_THREAD = "Current thread"  # that got the signal: the main thread, if it can

log = logging.getLogger("ddpjob.agent")


class StackCollector:
    """The collections of one agent: one for each hang."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._asked = ""  # the membership whose stacks were collected last
        self._task: asyncio.Future[None] | None = None

    def on_order(self, membership: str, logs: str) -> None:
        """Collect once while the orders ask for the stacks of a membership; empty: none."""
        if membership and membership != self._asked:
            self._task = asyncio.ensure_future(self._collect(membership, logs))
        self._asked = membership

    async def _collect(self, membership: str, logs: str) -> None:
        whole, short = await collect_stacks(logs)
        log.warning("the job hangs in membership %s; stacks of this worker:\n%s", membership, whole)
        text = shorten(short, MAX_STACKS)
        self._send({"type": "stacks", "membership": membership, "text": text})


async def collect_stacks(logs: str) -> tuple[str, str]:
    """Return the stacks of all processes below this one, and those of the training threads.

    `logs` is the folder of their start.
    """
    living = descendants(os.getpid())[:MAX_PROCESSES]
    files = {pid: path for pid, path in _files(logs).items() if pid in living}
    before = {pid: _size(path) for pid, path in files.items()}
    asked = {pid: path for pid, path in files.items() if _ask(pid)}
    await _wait_for(asked, before)
    whole, short = [], []
    for pid in sorted(living, key=lambda pid: pid not in files):
        stacks = _read(files[pid], before[pid]) if pid in asked else ""
        head = _describe(pid)
        if not head:
            continue
        whole.append(f"{head}\n{stacks or _in_kernel(pid)}")
        if pid in files or not files:
            _, current, own = stacks.partition(CURRENT_THREAD)
            short.append(f"{head}\n{current + own or _in_kernel(pid)}")
    nothing = ["no process runs"]
    return "\n".join(whole or nothing), "\n".join(short or nothing)


def _files(logs: str) -> dict[int, str]:
    """Return the files for stacks by process id."""
    paths = glob.glob(os.path.join(glob.escape(logs), f"{STACK_FILE}.*"))
    ids = (path.rpartition(".")[2] for path in paths)
    return {int(pid): path for pid, path in zip(ids, paths) if pid.isdecimal()}


def _ask(pid: int) -> bool:
    """Send the signal, if the process has a handler for it; otherwise it would end the process."""
    try:
        caught = int(_status(pid).get("SigCgt", "0"), 16)
        if caught >> (STACK_SIGNAL - 1) & 1:
            os.kill(pid, STACK_SIGNAL)
            return True
    except (OSError, ValueError):
        pass
    return False


async def _wait_for(asked: Mapping[int, str], before: Mapping[int, int]) -> None:
    """Wait until the files have grown and stay as they are; a stopped process writes nothing."""
    loop = asyncio.get_running_loop()
    until = loop.time() + WAIT_SECONDS
    sizes: dict[int, int] = {}
    while loop.time() < until:
        await asyncio.sleep(POLL_SECONDS)
        last, sizes = sizes, {pid: _size(path) for pid, path in asked.items()}
        if sizes == last and all(sizes[pid] > before[pid] or _is_stopped(pid) for pid in sizes):
            return


def _describe(pid: int) -> str:
    """Return what a process is; empty if it has ended."""
    try:
        status = _status(pid)
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return ""
    command = " ".join(filter(None, words))[:200] or status.get("Name", "")
    return f"process {pid}: {command}, {status.get('State', 'state not known')}"


def _in_kernel(pid: int) -> str:
    """Return where a process waits in the kernel, as far as this one may read it."""
    lines = [*_lines(f"/proc/{pid}/wchan"), *_lines(f"/proc/{pid}/stack")]
    kernel = "; ".join(line for line in lines if line not in ("", "0"))
    return f"  no Python stack; in the kernel: {kernel or 'not readable'}"


def _is_stopped(pid: int) -> bool:
    try:
        return _status(pid).get("State", "").startswith(("T", "t", "Z"))
    except (OSError, ValueError):
        return True


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        pairs = (line.partition(":") for line in file)
        return {name: value.strip() for name, _, value in pairs}


def _lines(path: str) -> Iterable[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file.read(4096).splitlines()]
    except OSError:
        return ()


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _read(path: str, since: int) -> str:
    """Return what a process has appended to its file; nothing if it is not a regular file."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        file.seek(since)
        return file.read(MAX_BYTES).decode(errors="replace").replace("\0", "").rstrip()
