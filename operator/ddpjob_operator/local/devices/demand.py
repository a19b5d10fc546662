"""Compares the devices that a job needs with those of the machine, before anything starts.

May not: find devices or assign them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.local.devices.discovery import Devices, find_devices, hide_devices
from ddpjob_protocol.text import plural


class TooFewDevicesError(Exception):
    """The machine has fewer devices than the workers need."""


def choose_devices(
    job: DDPJob,
    nodes: int,
    environment: Mapping[str, str],
    *,
    use: bool = True,
    share: bool = False,
) -> Devices:
    """Return the devices for a run; raise TooFewDevicesError if the workers need more.

    `nodes` limits the workers that run at the same time. Without `use`, the job runs without GPUs,
    whatever it asks for. With `share`, a device may have several workers.
    """
    if not use:
        return hide_devices(job.spec.gpu_resource)
    found = find_devices(job.spec.gpu_resource, environment)
    sizes = sorted((g.gpus for g in job.spec.groups() for _ in range(g.replicas)), reverse=True)
    at_once = sizes[:nodes]
    could_share = max(at_once, default=0) <= len(found.names)
    if share and could_share:
        return dataclasses.replace(found, are_shared=True)
    if sum(at_once) <= len(found.names):
        return found
    fitting = _fitting(at_once, len(found.names))
    with_fewer = f", --nodes {fitting} so that the other workers wait" if fitting else ""
    sharing = ", --share-gpus so that workers share GPUs" if could_share and found.names else ""
    raise TooFewDevicesError(
        f"{plural(len(at_once), 'worker')} {'need' if len(at_once) > 1 else 'needs'}"
        f" {plural(sum(at_once), 'GPU')} (gpusPerWorker), and there are {len(found.names)}"
        f" ({found.source}); lower gpusPerWorker or replicas{with_fewer}{sharing}, or pass --no-gpus to"
        " run on CPUs"
    )


def describe_use(job: DDPJob, devices: Devices) -> str:
    """Return a line about the devices for the start of a run; empty without devices."""
    names = ", ".join(devices.names)
    if not names:
        return ""
    users = [
        f"{group.gpus} for each worker of {group.name}" for group in job.spec.groups() if group.gpus
    ]
    if users:
        shared = ", shared" if devices.are_shared else ""
        return f"GPUs {names}: {', '.join(users)}{shared}"
    return f"GPUs {names} are not used: the job asks for none; to use them, set gpusPerWorker"


def _fitting(sizes: list[int], devices: int) -> int:
    """Return the number of nodes on which any of the workers fit."""
    return next((n for n in range(len(sizes), 0, -1) if sum(sizes[:n]) <= devices), 0)
