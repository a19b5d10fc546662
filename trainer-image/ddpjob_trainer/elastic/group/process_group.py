"""The process group of one membership: joined, aborted from another thread, left.

gloo has no abort. A blocked gloo collective ends when the read side of the group's connections is
shut down. The listener's socket must stay open; its shutdown would end the process. A duplicate
keeps the connections open until all ranks have left the group. Otherwise a peer that still writes
would get an error in gloo's own thread, and gloo does not pass that error to the collective. The
collective (`UnboundBuffer::waitSend`) would then wait for its time-out. NCCL's collectives are
aborted. This module does not depend on agents or training state.
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

ENTER_SECONDS = 20.0  # seconds to connect to all peers: gloo's own wait cannot be aborted
STORE_SECONDS = 7 * 86400.0  # seconds; workers may start late; a new membership aborts it
COLLECTIVE_SECONDS = 1800.0  # seconds; torch's default for gloo


class ElasticProcessGroup:
    """The group that this process is in or joins; one group at a time."""

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
        """Connect to the store at host:port, for the ranks that share `prefix`."""
        host, _, port = store.rpartition(":")
        before = frozenset(_sockets())
        client = distributed.TCPStore(
            host, int(port), is_master=False, timeout=dt.timedelta(seconds=STORE_SECONDS)
        )
        with self._lock:
            self._store = frozenset(_sockets()) - before
        return distributed.PrefixStore(prefix, client)

    def init(self, store: distributed.Store, rank: int, world_size: int) -> None:
        """Form the group. Raise RuntimeError if the group fails to form or is aborted.

        All ranks must have left their older groups.
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
        """Let each collective of this group fail now. Any thread may call this, repeatedly.

        While the group is forming, only the store's connections are shut down. If gloo lost a
        connection during its setup, gloo would end the process.
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
        """Leave and destroy the group."""
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
    """Return the backend that torch would choose for the device."""
    return "nccl" if device.type == "cuda" else "gloo"


def _repair_half_made() -> None:
    """Replace a group that failed to form by a group of one, so that torch can destroy it.

    torch counts groups until one is destroyed, and their keys in the store begin with that number.
    Without this repair, ranks with different numbers of attempts would never find each other.
    """
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


def _sockets() -> dict[int, int]:
    """Return the inode number and descriptor of each socket of this process."""
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
    """Duplicate another owner's TCP connection; return None if the owner has closed it.

    The owner may close its descriptor at any time. Other sockets and listeners return None.
    """
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
    with contextlib.suppress(OSError):  # the peer may have closed the connection
        connection.shutdown(how)
