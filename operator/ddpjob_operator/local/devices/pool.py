"""The devices of each worker: each device has one worker at most, unless devices are shared.

May not: start, end or observe processes.
"""

from __future__ import annotations

from collections import Counter

from ddpjob_operator.local.devices.discovery import Devices


class DevicePool:
    """The devices of one run."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._held: dict[str, tuple[str, ...]] = {}

    @property
    def free(self) -> tuple[str, ...]:
        """Devices that no worker holds, in the order of the machine."""
        held = {name for names in self._held.values() for name in names}
        return tuple(name for name in self._devices.names if name not in held)

    def take(self, worker: str, count: int) -> str:
        """Assign free devices to a worker; return an obstacle, or an empty text.

        If devices are shared, assign those with the fewest workers.
        """
        if self._devices.are_shared:
            users = Counter(name for names in self._held.values() for name in names)
            self._held[worker] = tuple(sorted(self._devices.names, key=users.__getitem__)[:count])
            return ""
        free = self.free
        if len(free) < count:
            total = len(self._devices.names)
            return f"too few free GPUs: it needs {count}, and {len(free)} of {total} are free"
        self._held[worker] = free[:count]
        return ""

    def release(self, worker: str) -> None:
        """Take back the devices of a worker whose processes have ended."""
        self._held.pop(worker, None)

    def environment(self, worker: str) -> dict[str, str]:
        """Return the variables that limit a worker to its devices."""
        names = self._held.get(worker, ())
        own = self._devices.environment(names)
        return {**own, **_as_a_host(worker)} if self._devices.are_shared and names else own


def _as_a_host(worker: str) -> dict[str, str]:
    """Return the variables by which NCCL takes a worker for a host of its own.

    NCCL refuses two ranks of one host on one GPU ("Duplicate GPU detected").
    """
    return {"NCCL_HOSTID": worker, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
