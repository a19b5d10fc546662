"""The process group of one membership: entered, broken off from another thread, left.

gloo has no abort. A blocked collective of its ends when the read side of the group's connections
is shut down; never that of its listener, which would end the process. The connections themselves
stay open, by a duplicate, until all have left the group: a peer that is still writing would get
an error in gloo's own thread, which forgets to tell the collective about it (`UnboundBuffer::
waitSend` then waits for its time-out). NCCL's collectives are aborted.
Knows nothing of agents and training state.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import sys
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


class ElasticProcessGroup:
    """The group that this process is in, or enters. One at a time."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._store: frozenset[int] = frozenset()  # sockets, by their inode numbers
        self._peers: frozenset[int] = frozenset()
        self._held: dict[int, socket.socket] = {}
        self.connecting = False
        self._is_half_made = False
        self._hook = sys.excepthook

    def connect_store(self, store: str, prefix: str) -> distributed.Store:
        """The store at host:port of those who enter together."""
        host, _, port = store.rpartition(":")
        before = frozenset(_sockets())
        client = distributed.TCPStore(
            host, int(port), is_master=False, timeout=dt.timedelta(seconds=STORE_SECONDS)
        )
        with self._lock:
            self._store = frozenset(_sockets()) - before
        return distributed.PrefixStore(prefix, client)

    def init(self, store: distributed.Store, rank: int, world_size: int) -> None:
        """Form the group; raises RuntimeError when it does not come to be, or is broken off.

        All of its ranks have left their older ones.
        """
        self._release()
        self._hook = sys.excepthook
        before = frozenset(_sockets())
        self.connecting = self._is_half_made = True
        try:
            distributed.init_process_group(
                self.backend, store=store, rank=rank, world_size=world_size,
                timeout=dt.timedelta(seconds=ENTER_SECONDS),
            )  # fmt: skip
        finally:
            self.connecting = False
        self._is_half_made = False
        if self.backend == "gloo":
            world = distributed.group.WORLD
            distributed.set_timeout(dt.timedelta(seconds=COLLECTIVE_SECONDS), world)
        with self._lock:
            self._peers = frozenset(_sockets()) - before

    def abort(self) -> None:
        """Let every collective of this group fail now; from any thread, any number of times.

        While the group is being formed only its store is cut off: gloo would end the process if
        it lost a connection that it is just making.
        """
        if self.backend == "nccl" and distributed.is_initialized():
            with contextlib.suppress(RuntimeError):
                distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - no public one
        with self._lock:
            self._hold_peers()
            for connection in self._held.values():
                _shut_down(connection, socket.SHUT_RD)
            for inode, descriptor in _sockets().items():
                client = _duplicate(descriptor) if inode in self._store else None
                if client is not None:
                    _shut_down(client, socket.SHUT_RDWR)
                    client.close()

    def destroy(self) -> None:
        """Be in no group."""
        with self._lock:
            self._hold_peers()
            self._store = self._peers = frozenset()
        if self._is_half_made:
            _repair_half_made()
            self._is_half_made = False
        if distributed.is_initialized():
            distributed.destroy_process_group()
            if sys.excepthook.__module__ == distributed.distributed_c10d.__name__:
                sys.excepthook = self._hook  # or there would be one more for each group

    def _hold_peers(self) -> None:
        for inode, descriptor in _sockets().items():
            if inode in self._peers and inode not in self._held:
                connection = _duplicate(descriptor)
                if connection is not None:
                    self._held[inode] = connection

    def _release(self) -> None:
        with self._lock:
            for connection in self._held.values():
                connection.close()
            self._held.clear()


def backend_for(device: torch.device) -> str:
    """What torch would choose."""
    return "nccl" if device.type == "cuda" else "gloo"


def _repair_half_made() -> None:
    """A group of one in place of one that could not be formed, so that it can be destroyed.

    torch counts groups, until one is destroyed, and their keys in the store begin with the number:
    those who are in different attempts would never find each other.
    """
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


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


def _duplicate(descriptor: int) -> socket.socket | None:
    """A TCP connection of another owner, who may close his descriptor at any time."""
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
    if is_tcp and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return connection
    connection.close()
    return None


def _shut_down(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # its peer may have closed it
        connection.shutdown(how)
