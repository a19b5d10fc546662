"""The process that imports torch once and forks: no threads, no device, one loop.

Runs in the Python of the user's torchrun. Ends with the agent. Imports nothing of ddpjob's but
this package; knows nothing of memberships.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

from . import channel, script, torchrun
from .channel import Request

if TYPE_CHECKING:
    from collections.abc import Mapping

PR_SET_PDEATHSIG = 1
READY, UNFIT = "ready", "unfit"
# torch imports the second when it first makes an optimizer or wraps a model, which is always.
IMPORTS = ("torch.distributed.run", "torch._dynamo")


class Birth(NamedTuple):
    """What a forked process is to become."""

    request: Request
    descriptors: list[int]
    line: socket.socket
    channel: socket.socket | None  # of torchrun, to ask the parent for training processes


def main(descriptor: int) -> None:
    """Import, say so, and fork for the agent until it hangs up."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    agent, before = socket.socket(fileno=descriptor), dict(os.environ)
    gc.disable()  # importing makes much and little of it is garbage: a sixth of the time
    try:
        _import()
        reason = _unfit()
    except Exception as error:  # noqa: BLE001 - the user's installation may do anything
        reason = f"cannot import torch: {type(error).__name__}: {error}"
    agent.sendall(f"{UNFIT} {reason}\n".encode() if reason else f"{READY}\n".encode())
    if reason:
        return
    gc.freeze()  # so that a child's collector does not touch, and copy, what it shares
    gc.enable()
    atexit.register(gc.unfreeze)  # and yet destroys it at the end, as ever
    birth = _Parent(agent).serve()
    if birth is not None:
        _live(birth, before)


def _import() -> None:
    for name in IMPORTS:
        __import__(name)
    inspect.stack()  # fills a table of all modules, which torchrun's rendezvous looks things up in


def _unfit() -> str:
    """Why it is not safe to fork this process; empty if it is."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() or _open_devices():
        return "importing torch opened a GPU"
    if not torchrun.is_known():
        return f"torch {torch.__version__} starts training processes in a way that is not known"
    child = os.fork()  # thread pools that can be forked, as OpenBLAS's, end at the first fork
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"importing torch left {threads - 1} threads running" if threads > 1 else ""


def _open_devices() -> bool:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/nvidia", "/dev/kfd")):
                return True
        except OSError:
            continue
    return False


class _Parent:
    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._lines: dict[int, socket.socket] = {}  # of training processes, by their ids
        self._selector = selectors.DefaultSelector()
        self._selector.register(agent, selectors.EVENT_READ)
        self._wake, wake = socket.socketpair()
        self._wake_end = wake
        for each in (self._wake, wake):
            each.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> Birth | None:
        """Fork when asked; returns in each child what it is to be, and None at the end."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake:
                    self._wake.recv(4096)
                    self._reap()
                    continue
                assert isinstance(key.fileobj, socket.socket)
                asked = channel.receive(key.fileobj)
                if asked is not None:
                    birth = self._fork(key.fileobj, *asked)
                    if birth is not None:
                        return birth
                elif key.fileobj is self._agent:
                    return None
                else:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()

    def _fork(self, by: socket.socket, request: Request, descriptors: list[int]) -> Birth | None:
        line = socket.socket(fileno=descriptors.pop())
        ours, theirs = socket.socketpair() if by is self._agent else (None, None)
        child = os.fork()
        if child == 0:
            if by is self._agent and os.fork() != 0:
                os._exit(0)  # the agent, a subreaper, becomes the parent of torchrun
            self._forget()
            if ours is not None:
                ours.close()
            return Birth(request, descriptors, line, theirs)
        for descriptor in descriptors:
            os.close(descriptor)
        if ours is not None and theirs is not None:
            os.waitpid(child, 0)
            line.close()
            theirs.close()
            self._selector.register(ours, selectors.EVENT_READ)
        else:
            self._lines[child] = line
        return None

    def _forget(self) -> None:
        """In the child: let go of everything that is the parent's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
        self._wake_end.close()
        for line in self._lines.values():
            line.close()

    def _reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            line = self._lines.pop(child, None)
            if line is not None:
                channel.tell(line, channel.EXIT, os.waitstatus_to_exitcode(status))
                line.close()


def _live(birth: Birth, before: Mapping[str, str]) -> None:
    """Never returns: the end of the program is the end of the process.

    `before` is the environment in which torch was imported, which sets some variables itself.
    """
    imported = {name: value for name, value in os.environ.items() if name not in before}
    script.settle(birth.request, birth.descriptors)
    channel.tell(birth.line, channel.PID, os.getpid())
    if birth.channel is not None:
        if not birth.line.recv(1):  # until the agent knows whom it has started
            os._exit(0)
        birth.line.close()
        torchrun.fork_from(birth.channel, before)
        torchrun.hurry(birth.request.environment.get("PET_NNODES", ""))
        with script.quick_end():
            script.run(birth.request.arguments)
    for name, value in imported.items():
        os.environ.setdefault(name, value)
    birth.line.close()
    script.run(birth.request.arguments)
