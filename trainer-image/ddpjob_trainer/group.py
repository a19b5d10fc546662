"""The process group of one membership: entered, broken off from another thread, left.

A blocked gloo collective is broken off by shutting down the group's connected sockets, never its
listener: that would end the process (gloo has no abort of its own). NCCL's is aborted.
Knows nothing of agents and training state.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTER_SECONDS = 20.0  # all are there and connect to each other: gloo's own wait is unbreakable
STORE_SECONDS = 7 * 86400.0  # others may have to be started first; a newer membership breaks it off
COLLECTIVE_SECONDS = 1800.0  # torch's default for gloo


class Group:
    """The group that this process is in, or enters. One at a time."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._before: frozenset[int] = frozenset()  # sockets, before this group: inode numbers
        self._sockets: frozenset[int] = frozenset()  # of this group
        self.connecting = False

    def meet(self, store: str, prefix: str) -> distributed.Store:
        """The store at host:port of those who enter together."""
        host, _, port = store.rpartition(":")
        self._before = frozenset(_sockets())
        client = distributed.TCPStore(
            host, int(port), is_master=False, timeout=dt.timedelta(seconds=STORE_SECONDS)
        )
        with self._lock:
            self._sockets = frozenset(_sockets()) - self._before
        return distributed.PrefixStore(prefix, client)

    def enter(self, store: distributed.Store, rank: int, world_size: int) -> None:
        """Form the group; raises RuntimeError when it does not come to be, or is broken off."""
        self.connecting = True
        try:
            distributed.init_process_group(
                self.backend, store=store, rank=rank, world_size=world_size,
                timeout=dt.timedelta(seconds=ENTER_SECONDS),
            )  # fmt: skip
        finally:
            self.connecting = False
        if self.backend == "gloo":
            world = distributed.group.WORLD
            distributed.set_timeout(dt.timedelta(seconds=COLLECTIVE_SECONDS), world)
        with self._lock:
            self._sockets = frozenset(_sockets()) - self._before

    def break_off(self) -> None:
        """Let every collective of this group fail now; from any thread, any number of times.

        While the group is being formed only its store is cut off: gloo would end the process if
        it lost a connection that it is just making.
        """
        if self.backend == "nccl" and distributed.is_initialized():
            with contextlib.suppress(RuntimeError):
                distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - no public one
        with self._lock:
            for inode, descriptor in _sockets().items():
                if inode in self._sockets:
                    _shut_down(descriptor)

    def leave(self) -> None:
        """Be in no group."""
        with self._lock:
            self._sockets = frozenset()
        if distributed.is_initialized():
            distributed.destroy_process_group()


def backend_for(device: torch.device) -> str:
    """What torch would choose."""
    return "nccl" if device.type == "cuda" else "gloo"


def _sockets() -> dict[int, int]:
    """This process's sockets: inode numbers and descriptors."""
    return dict(_list_sockets())


def _list_sockets() -> Iterator[tuple[int, int]]:
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(target[len("socket:[") : -1]), int(path.name)


def _shut_down(descriptor: int) -> None:
    try:
        # A duplicate: the descriptor may be closed, and used anew, by its owner meanwhile.
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    with connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        if is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
