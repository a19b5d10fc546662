"""The process group of one membership: joined, aborted from another thread, left.

gloo has no abort. A blocked gloo collective ends when the read side of the group's connections is
shut down. The listener's socket must stay open; its shutdown would end the process. A duplicate
keeps the connections open until all ranks have left the group. Otherwise a peer that still writes
would get an error in gloo's own thread, and gloo does not pass that error to the collective. The
collective (`UnboundBuffer::waitSend`) would then wait for its time-out. NCCL's collectives are
aborted. They return without an error, so `raise_if_failed` must be asked what they are worth. torch
knows the group until `destroy`. This module does not depend on agents or training state.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from ddpjob_protocol.addresses import split_address
from ddpjob_trainer.elastic.group import sockets
from ddpjob_trainer.elastic.group.aborts import Aborts, ExitGate
from ddpjob_trainer.elastic.group.break_errors import GroupAbortedError

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("ddpjob")

ENTER_SECONDS = 20.0  # seconds to connect to all peers: gloo's own wait cannot be aborted
ENTER_SECONDS_ON_DEVICES = 120.0  # NCCL may connect when the group forms, which takes longer
STORE_SECONDS = 7 * 86400.0  # seconds; workers may start late; a new membership aborts it
COLLECTIVE_SECONDS = 1800.0  # seconds; torch's default for gloo
ABORT_SECONDS = 5.0  # seconds for the aborts of all groups; NCCL takes 0.5 s
# NCCL would end this process when a peer is lost, before the agent assigns another group, or when
# its watchdog waits for an abort.
NCCL_ENDS_NO_PROCESS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class ElasticProcessGroup:
    """The group that this process is in or joins; one group at a time."""

    def __init__(self, backend: str, device: torch.device | None = None) -> None:
        """Use this backend of torch, and this device for its collectives on devices."""
        self.backend = backend
        self._device = device if device is not None and device.type != "cpu" else None
        self._lock = threading.Lock()
        self._store: frozenset[int] = frozenset()  # sockets, by their inode numbers
        self._peers: frozenset[int] = frozenset()
        self._held: dict[int, socket.socket] = {}
        self._aborts, self._gate = Aborts(), ExitGate()
        self.connecting = False
        self._is_half_made = False
        self._is_aborted = False
        self._hook = sys.excepthook

    def connect_store(self, store: str, prefix: str) -> distributed.Store:
        """Connect to the store at host:port, for the ranks that share `prefix`."""
        host, port = split_address(store)
        self._is_aborted = False
        before = sockets.find_sockets()
        client = distributed.TCPStore(
            host, port, is_master=False, timeout=dt.timedelta(seconds=STORE_SECONDS)
        )
        with self._lock:
            self._store = sockets.connections_to(_new(before), (), _addresses(host, port))
        return distributed.PrefixStore(prefix, client)

    def init(self, store: distributed.Store, rank: int, world_size: int) -> None:
        """Form the group. Raise RuntimeError if the group fails to form or is aborted.

        All ranks must have left their older groups.
        """
        self._release()
        self._hook = sys.excepthook
        os.environ.update(NCCL_ENDS_NO_PROCESS)
        before = sockets.find_sockets()
        self.connecting = self._is_half_made = True
        seconds = ENTER_SECONDS if self._device is None else ENTER_SECONDS_ON_DEVICES
        try:
            self.init_torch(
                store=store, rank=rank, world_size=world_size,
                timeout=dt.timedelta(seconds=seconds),
            )  # fmt: skip
        finally:
            self.connecting = False
        self._is_half_made = False
        _set_timeout(COLLECTIVE_SECONDS)
        peers = _find_peers(store, rank, world_size, _new(before))
        with self._lock:
            self._peers = peers
        self.raise_if_failed()

    def init_torch(self, **options: Any) -> None:
        """Form torch's group with these options of init_process_group."""
        distributed.init_process_group(self.backend, device_id=self._device, **options)

    def raise_if_failed(self) -> None:
        """Raise GroupAbortedError if a collective of this group may have returned wrong values.

        Collectives on devices must have ended before. They report an abort in no other way.
        """
        if self._is_aborted:
            raise GroupAbortedError(
                "the process group was aborted because the membership changed: what its last "
                "collectives returned is unknown"
            )
        problem = _backend_error(self._device)
        if problem is not None:
            raise GroupAbortedError(
                f"the process group's backend {self.backend} reports {problem}: what its last "
                "collectives returned is unknown"
            )

    def abort(self) -> None:
        """Let each collective of this group fail now. Any thread may call this, repeatedly.

        While the group is forming, only the store's connections are shut down. If gloo lost a
        connection during its setup, gloo would end the process.
        """
        self._is_aborted = True  # before collectives on devices return wrong values
        with self._gate.pass_through():
            self._abort()

    def _abort(self) -> None:
        # Torch knows the groups until `destroy`: without them it would raise ValueErrors.
        groups = [*distributed_c10d._world.pg_names]  # noqa: SLF001 - no public list
        has_started = self._aborts.start(groups)
        with self._lock:
            self._hold_peers()
            for connection in self._held.values():
                sockets.shut_down(connection, socket.SHUT_RD)
            for inode, descriptor in sockets.find_sockets().items():
                client = sockets.duplicate(descriptor) if inode in self._store else None
                if client is not None:
                    sockets.shut_down(client, socket.SHUT_RDWR)
                    client.close()
        if has_started and not self._aborts.wait(ABORT_SECONDS):
            _log.warning("the abort of a process group has not returned for %g s", ABORT_SECONDS)

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
        for inode, descriptor in sockets.find_sockets().items():
            if inode in self._peers and inode not in self._held:
                connection = sockets.duplicate(descriptor)
                if connection is not None:
                    self._held[inode] = connection

    def _release(self) -> None:
        with self._lock:
            for connection in self._held.values():
                connection.close()
            self._held.clear()


def backend_for(device: torch.device) -> str:
    """Return torch's backends for the CPU and the device, such as cpu:gloo,cuda:nccl."""
    names = distributed.Backend.default_device_backend_map
    if device.type == "cpu":
        return names["cpu"]
    return f"cpu:{names['cpu']},{device.type}:{names[device.type]}"


def _new(before: Mapping[int, int]) -> dict[int, int]:
    """Return the sockets opened since then."""
    return {inode: fd for inode, fd in sockets.find_sockets().items() if inode not in before}


def _addresses(host: str, port: int) -> list[sockets.Address]:
    """Return the addresses of a host's name, with the port."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(str(each[4][0]), port) for each in found]


def _find_peers(
    store: distributed.Store, rank: int, world_size: int, opened: Mapping[int, int]
) -> frozenset[int]:
    """Exchange the listeners of all ranks, and return this rank's connections among `opened`."""
    if world_size == 1:
        return frozenset()
    store.set(f"listeners/{rank}", json.dumps(sockets.listeners(opened)))
    found = store.multi_get([f"listeners/{each}" for each in range(world_size)])
    ranks = [{(host, port) for host, port in json.loads(each)} for each in found]
    others = frozenset().union(*ranks[:rank], *ranks[rank + 1 :])
    return sockets.connections_to(opened, ranks[rank], others)


def _set_timeout(seconds: float) -> None:
    """Limit each collective of the group to this time, on all backends."""
    older = distributed_c10d._set_pg_timeout  # noqa: SLF001 - the only one before torch 2.15
    getattr(distributed, "set_timeout", older)(dt.timedelta(seconds=seconds))


def _backend_error(device: torch.device | None) -> str | None:
    """Return the error that the device's backend reports, or None."""
    group = distributed.group.WORLD
    if device is None or group is None:
        return None
    try:
        error = group._get_backend(device).get_error()  # noqa: SLF001 - no public one
    except RuntimeError:  # this backend reports none
        return None
    return None if error.name == "SUCCESS" else str(error.name)


def _repair_half_made() -> None:
    """Replace a group that failed to form by a group of one, so that torch can destroy it.

    torch counts groups until one is destroyed, and their keys in the store begin with that number.
    Without this repair, ranks with different numbers of attempts would never find each other.
    """
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
