"""Groups of workers: their fields in a job's spec, and what these come to.

May not: compare groups with each other; that is `api`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ddpjob_operator.model import Model
from ddpjob_operator.parts import Count, DnsLabel, EnvVar, Processes, Text


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of workers with every default and inheritance resolved."""

    name: str
    replicas: int
    minimum: int
    maximum: int
    gpus: int
    processes: int
    image: str | None
    command: tuple[str, ...]  # with the arguments
    env: Mapping[str, str]


class WorkerFields(Model):
    """What the main group and extra groups have in common."""

    replicas: Count = Field(description="How many workers the group should have.")
    max_replicas: Count | None = Field(
        default=None, description="The most that replicas may become. Absent: replicas."
    )
    gpus_per_worker: Count | None = Field(
        default=None,
        description="GPUs of each worker. Absent: none; in an extra group: as the main group.",
    )
    processes_per_worker: Processes | None = Field(
        default=None,
        description="Processes of each worker, or auto: one for each GPU, one without GPUs. "
        "Absent: auto; in an extra group: as the main group.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    image: Text | None = Field(
        default=None, description="Image of the workers; the local back end has no use for it."
    )
    command: tuple[str, ...] | None = Field(
        default=None,
        description="What a worker runs, usually torchrun and a script. "
        "Required; in an extra group absent: as the main group, with its args.",
    )
    args: tuple[str, ...] | None = Field(default=None, description="Appended to the command.")
    env: tuple[EnvVar, ...] = Field(
        default=(),
        description="Environment of the processes; an extra group's entries are added to those "
        "of the main group and win over them.",
    )
    template: dict[str, Any] | None = Field(
        default=None, description="The whole pod, instead of image, command, args and env."
    )


class ExtraWorkerGroup(WorkerFields):
    """A further group, for workers of another kind."""

    name: DnsLabel = Field(description="Name of the group, unique in the job.")
    min_replicas: Count = Field(
        default=0, description="How many of its workers the job cannot do without."
    )


def resolve(main: WorkerFields, own: WorkerFields, name: str, minimum: int) -> Group:
    """A group as it is after defaults, and what an extra group takes from the main one."""
    heirs = main if own.template is None else own
    gpus = own.gpus_per_worker if own.gpus_per_worker is not None else heirs.gpus_per_worker
    processes = own.processes_per_worker or heirs.processes_per_worker or "auto"
    args = main.args if own.command is None and own.args is None else own.args
    return Group(
        name=name,
        replicas=own.replicas,
        minimum=minimum,
        maximum=own.replicas if own.max_replicas is None else own.max_replicas,
        gpus=gpus or 0,
        processes=(gpus or 1) if processes == "auto" else processes,
        image=own.image or main.image,
        command=(*(own.command or main.command or ()), *(args or ())),
        env={entry.name: entry.value for entry in (*main.env, *own.env)},
    )


def limits(group: WorkerFields) -> set[str]:
    """Resources that containers of the group's template limit; the template may be any shape."""
    containers = _at(_at(group.template, "spec"), "containers")
    each = containers if isinstance(containers, list) else ()
    return {name for c in each for name in (_at(_at(c, "resources"), "limits") or ())}


def _at(value: object, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
