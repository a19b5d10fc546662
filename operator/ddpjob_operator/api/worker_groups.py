"""Groups of workers: the fields in a job's spec, and their resolved values.

May not: compare groups with each other; `spec` does that.
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

TRAINER = "trainer"  # name of the container that trains; default: the first container


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
    """The fields that the main group and extra groups share."""

    replicas: Replicas = Field(description="Desired number of workers of the group.")
    max_replicas: Replicas | None = Field(
        default=None, description="Upper limit of replicas. Defaults to replicas."
    )
    gpus_per_worker: Count | None = Field(
        default=None,
        description="GPUs of each worker. Defaults to none; in an extra group, to the main group's.",
    )
    processes_per_worker: Processes | None = Field(
        default=None,
        description="Processes of each worker, or auto: one for each GPU, one without GPUs. "
        "Defaults to auto; in an extra group, to the main group's.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    image: Text | None = Field(
        default=None, description="Image of the workers. The local back end ignores it."
    )
    command: Command | None = Field(
        default=None,
        description="Command of each worker, usually torchrun and a script. "
        "Required; an extra group defaults to the main group's command and args.",
    )
    args: Command | None = Field(
        default=None, description="Arguments that are appended to the command."
    )
    env: Env = Field(
        default=(),
        description="Environment of the processes. An extra group adds its entries to the main "
        "group's; its own entry wins if both have the name.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits of each worker. An extra group defaults to the main "
        "group's.",
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template, as in a Deployment; replaces image, command, args, env and "
        "resources. The container 'trainer', or else the first container, trains.",
    )


class ExtraWorkerGroup(WorkerFields):
    """A further group, for workers of another kind."""

    name: DnsLabel = Field(description="Name of the group, unique in the job.")
    min_replicas: Replicas = Field(
        default=0,
        description="Minimum number of workers of this group. Workers of other groups do not "
        "count.",
    )


def resolve(
    main: WorkerFields, own: WorkerFields, name: str, minimum: int, gpu_resource: str
) -> Group:
    """Return a group with its defaults and the values inherited from the main group."""
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
    """Return the container that trains, or an empty one; accept a template of any shape."""
    containers = _at(_at(template, "spec"), "containers")
    found = [c for c in containers if isinstance(c, dict)] if isinstance(containers, list) else []
    return next((c for c in found if c.get("name") == TRAINER), next(iter(found), {}))


def limit(template: dict[str, Any] | None, resource: str) -> int:
    """Return the limit of a resource of the container that trains."""
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
    """Return the GPUs that the fields request in any of the three ways, or None."""
    if fields.gpus_per_worker is not None:
        return fields.gpus_per_worker
    limits = (fields.resources.limits if fields.resources else None) or {}
    return _count(limits.get(resource)) or limit(fields.template, resource) or None


def _count(value: object) -> int:
    return int(str(value)) if str(value).isdecimal() else 0


def _at(value: object, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
