"""The fork server: imports torch once and forks; no threads, no device, one loop.

The server runs in the Python of the user's torchrun and ends with its owner. The owner is an agent
or a run of simulated nodes. For simulated nodes the server starts agents, each with a fork of the
server as its own fork server. The server imports only this package and the protocol of ddpjob. It
knows nothing of memberships.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import inspect
import json
import os
import selectors
import signal
import socket
import sys
from typing import TYPE_CHECKING, NamedTuple

from ddpjob_agent.forkserver import channel, eligibility, import_watch, proc_title, torchrun_patch
from ddpjob_agent.forkserver import child as script
from ddpjob_agent.forkserver.channel import AGENT, READY, TORCHRUN, UNFIT, ForkRequest
from ddpjob_agent.forkserver.parent_death import die_with_parent
from ddpjob_protocol.environment import ENV_WARM_PARENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CLONE_NEWNET = 0x40000000
# Every training script imports torch._dynamo: at its first optimizer or wrapped model.
IMPORTS = ("torch.distributed.run", "torch._dynamo")


class ForkSpec(NamedTuple):
    """The request and sockets of a forked process."""

    request: ForkRequest
    descriptors: list[int]
    line: socket.socket
    channel: socket.socket | None  # for torchrun, to request training processes
    parent: int  # id of the process that forked it


def main(descriptor: int, path: str = "") -> None:
    """Import torch, send the greeting, and fork for the owner until the owner disconnects.

    If `path` is set, also fork for each client that connects there.
    """
    die_with_parent(signal.SIGKILL, os.getppid())
    owner, before = socket.socket(fileno=descriptor), dict(os.environ)
    listener = socket.create_server(path, family=socket.AF_UNIX) if path else None
    gc.disable()  # imports create little garbage; the collector takes a sixth of the time
    names = (*eligibility.preloaded_environment(os.environ), "torch")
    named = " and ".join(names)
    try:
        _import(names)
        reason = _not_eligible(named)
    except Exception as error:  # noqa: BLE001 - an import may raise anything
        reason = f"cannot import {named}: {type(error).__name__}: {error}"
    if reason:
        owner.sendall(f"{UNFIT} {reason}\n".encode())
        return
    greeting = f"{READY} {json.dumps([sys.executable, before])}\n".encode()
    owner.sendall(greeting)
    gc.freeze()  # keeps a child's collector from touching, and so copying, shared memory
    gc.enable()
    atexit.register(script.exit_after_modules)
    birth = _ForkServer(owner, listener, greeting).serve()
    while birth is not None and birth.request.kind == AGENT:
        birth = _ForkServer(_become_agent(birth)).serve()
    if birth is None:
        os._exit(0)  # saves the seconds that destroying all modules takes
    _run_child(birth, before)


def _import(names: Sequence[str]) -> None:
    for name in (*names, *IMPORTS):
        __import__(name)
    inspect.stack()  # fills the module cache that torchrun's rendezvous reads


def _not_eligible(named: str) -> str:
    """Return the reason why a fork of this process is not safe; empty if a fork is safe."""
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() or _open_devices():
        return f"importing {named} opened a GPU"
    if not torchrun_patch.is_supported_torch():
        return f"torch {torch.__version__} starts training processes in a way that is not known"
    child = os.fork()  # fork-aware thread pools, such as OpenBLAS's, end at the first fork
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"importing {named} left {threads - 1} threads running" if threads > 1 else ""


def _open_devices() -> bool:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(("/dev/nvidia", "/dev/kfd")):
                return True
        except OSError:
            continue
    return False


class _ForkServer:
    """A server that forks for its owner, its accepted clients and its forked torchruns."""

    def __init__(
        self, owner: socket.socket, listener: socket.socket | None = None, greeting: bytes = b""
    ) -> None:
        self._owner = owner
        self._listener = listener
        self._greeting = greeting
        self._lines: dict[int, socket.socket] = {}  # by a child's id
        self._agents: dict[int, socket.socket] = {}  # requester, by the agent's id
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_end = socket.socketpair()
        for end in (self._wake, self._wake_end):
            end.setblocking(False)
        for each in (owner, listener, self._wake):
            if each is not None:
                self._selector.register(each, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)

    def serve(self) -> ForkSpec | None:
        """Fork at each request; return the spec in each child, and None when the owner is gone."""
        while True:
            for key, _ in self._selector.select():
                asker = key.fileobj
                assert isinstance(asker, socket.socket)
                if asker is self._wake:
                    self._wake.recv(4096)
                    self._reap()
                elif asker is self._listener:
                    self._accept(self._listener)
                elif (asked := channel.receive(asker)) is not None:
                    birth = self._fork(asker, *asked)
                    if birth is not None:
                        return birth
                else:
                    self._on_disconnect(asker)
                    if asker is self._owner:
                        return None

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError):  # a client that is gone reads as disconnected
            connection.sendall(self._greeting)
        self._selector.register(connection, selectors.EVENT_READ)

    def _on_disconnect(self, asker: socket.socket) -> None:
        """Send SIGTERM to the agents of a disconnected requester, as the end of a parent would."""
        self._selector.unregister(asker)
        asker.close()
        for agent, by in self._agents.items():
            if by is asker:
                os.kill(agent, signal.SIGTERM)

    def _fork(
        self, by: socket.socket, request: ForkRequest, descriptors: list[int]
    ) -> ForkSpec | None:
        line = socket.socket(fileno=descriptors.pop())
        is_torchrun = request.kind == TORCHRUN
        ours, theirs = socket.socketpair() if is_torchrun else (None, None)
        me = os.getpid()
        child = os.fork()
        if child == 0:
            if is_torchrun and os.fork() != 0:
                os._exit(0)  # so the agent, a subreaper, becomes the parent of torchrun
            self._close_descriptors()
            if ours is not None:
                ours.close()
            return ForkSpec(request, descriptors, line, theirs, me)
        for descriptor in descriptors:
            os.close(descriptor)
        if ours is not None and theirs is not None:
            os.waitpid(child, 0)
            line.close()
            theirs.close()
            self._selector.register(ours, selectors.EVENT_READ)
        else:
            self._lines[child] = line
            if request.kind == AGENT:
                self._agents[child] = by
        return None

    def _close_descriptors(self) -> None:
        """Close the descriptors and handlers of the fork server in a child."""
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
            self._agents.pop(child, None)
            line = self._lines.pop(child, None)
            if line is not None:
                channel.send_event(line, channel.EXIT, os.waitstatus_to_exitcode(status))
                line.close()


def _become_agent(birth: ForkSpec) -> socket.socket:
    """Execute the agent; return only in its new fork server, with the socket of the owner."""
    request, agent = birth.request, os.getpid()
    die_with_parent(signal.SIGTERM, birth.parent)
    os.setsid()
    script.replace_streams(birth.descriptors)
    os.chdir(request.directory)
    if request.network:
        _enter_network(request.network)
    channel.send_event(birth.line, channel.PID, agent)
    if not birth.line.recv(1):  # a requester that gave up starts another agent
        os._exit(0)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        birth.line.close()
        os.setsid()
        die_with_parent(signal.SIGKILL, agent)
        proc_title.set_proc_cmdline([sys.executable, "-m", __name__], request.environment.items())
        theirs.sendall(f"{READY}\n".encode())
        return theirs
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both; the agent must not
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(ours.fileno(), True)
    environment = {**request.environment, ENV_WARM_PARENT: f"{ours.fileno()} {child}"}
    try:
        os.execvpe(request.arguments[0], request.arguments, environment)  # noqa: S606 - the request
    except OSError as error:
        sys.stderr.write(f"ddpjob: cannot execute {request.arguments[0]}: {error.strerror}\n")
        os._exit(127)


def _enter_network(path: str) -> None:
    """Enter a network namespace; the call needs CAP_SYS_ADMIN."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {path}")


def _run_child(birth: ForkSpec, before: Mapping[str, str]) -> None:
    """Run the program; never return, because the process ends with the program.

    `before` is the environment before the import of torch, which sets some variables itself.
    """
    imported = {name: value for name, value in os.environ.items() if name not in before}
    script.become_fresh_process(birth.request, birth.descriptors)
    channel.send_event(birth.line, channel.PID, os.getpid())
    if birth.channel is not None:
        if not birth.line.recv(1):  # the agent gave up before it had the id
            os._exit(0)
        birth.line.close()
        torchrun_patch.fork_from(birth.channel, before)
        torchrun_patch.shorten_rendezvous_delays(birth.request.environment.get("PET_NNODES", ""))
        with script.fast_exit():
            script.run(birth.request.arguments)
    for name, value in imported.items():
        os.environ.setdefault(name, value)
    birth.line.close()
    preloaded = (*eligibility.preloaded_environment(before), "torch")
    import_watch.watch({each.partition(".")[0] for each in preloaded}, birth.request.arguments)
    with script.full_exit():
        script.run(birth.request.arguments)
