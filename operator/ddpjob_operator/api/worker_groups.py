"""Groups of workers: their fields in a job's spec, and what these come to.

May not: compare groups with each other; that is `api`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field

from ddpjob_operator.api.base import Model
from ddpjob_operator.api.fields import (
    Command,
    Count,
    DnsLabel,
    Env,
    EnvVar,
    Processes,
    Replicas,
    Resources,
    Text,
)

TRAINER = "trainer"  # the container that trains; without one of that name, the first


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
    env: tuple[EnvVar, ...]  # one of each name
    resources: Resources
    template: dict[str, Any] | None


class WorkerFields(Model):
    """What the main group and extra groups have in common."""

    replicas: Replicas = Field(description="How many workers the group should have.")
    max_replicas: Replicas | None = Field(
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
    command: Command | None = Field(
        default=None,
        description="What a worker runs, usually torchrun and a script. "
        "Required; in an extra group absent: as the main group, with its args.",
    )
    args: Command | None = Field(default=None, description="Appended to the command.")
    env: Env = Field(
        default=(),
        description="Environment of the processes; an extra group's entries are added to those "
        "of the main group and win over them.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits of each worker; in an extra group absent: as the main "
        "group's.",
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description="The whole pod, as in a Deployment, instead of image, command, args, env and "
        "resources. Its container 'trainer', or else its first, is the one that trains.",
    )


class ExtraWorkerGroup(WorkerFields):
    """A further group, for workers of another kind."""

    name: DnsLabel = Field(description="Name of the group, unique in the job.")
    min_replicas: Replicas = Field(
        default=0,
        description="How many of its workers the job cannot do without; no other group stands in "
        "for them.",
    )


def resolve(
    main: WorkerFields, own: WorkerFields, name: str, minimum: int, gpu_resource: str
) -> Group:
    """A group as it is after defaults, and what an extra group takes from the main one."""
    heirs = main if own.template is None else own
    template = heirs.template
    resources = own.resources or heirs.resources or Resources()
    gpus = _gpus(own, gpu_resource)
    if gpus is None:
        gpus = _gpus(heirs, gpu_resource) or 0
    processes = own.processes_per_worker or heirs.processes_per_worker or "auto"
    return Group(
        name=name,
        replicas=own.replicas,
        minimum=minimum,
        maximum=own.replicas if own.max_replicas is None else own.max_replicas,
        gpus=gpus,
        processes=(gpus or 1) if processes == "auto" else processes,
        image=own.image or heirs.image,
        command=_command(heirs, own),
        env=tuple({entry.name: entry for entry in (*heirs.env, *own.env)}.values()),
        resources=resources,
        template=template,
    )


def trainer(template: dict[str, Any] | None) -> dict[str, Any]:
    """The container of a template that trains, or nothing; the template may be any shape."""
    containers = _at(_at(template, "spec"), "containers")
    found = [c for c in containers if isinstance(c, dict)] if isinstance(containers, list) else []
    return next((c for c in found if c.get("name") == TRAINER), next(iter(found), {}))


def limit(template: dict[str, Any] | None, resource: str) -> int:
    """How much of a resource the container that trains may have."""
    return _count(_at(_at(_at(trainer(template), "resources"), "limits"), resource))


def _command(heirs: WorkerFields, own: WorkerFields) -> tuple[str, ...]:
    if heirs.template is not None:
        container = trainer(heirs.template)
        return (*_words(container.get("command")), *_words(container.get("args")))
    args = heirs.args if own.command is None and own.args is None else own.args
    return (*(own.command or heirs.command or ()), *(args or ()))


def _words(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _gpus(fields: WorkerFields, resource: str) -> int | None:
    """GPUs that these fields ask for, in any of the three ways; None if they say nothing of it."""
    if fields.gpus_per_worker is not None:
        return fields.gpus_per_worker
    limits = (fields.resources.limits if fields.resources else None) or {}
    return _count(limits.get(resource)) or limit(fields.template, resource) or None


def _count(value: object) -> int:
    return int(str(value)) if str(value).isdecimal() else 0


def _at(value: object, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
