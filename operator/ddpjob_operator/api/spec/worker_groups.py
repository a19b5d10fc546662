"""Groups of workers: the fields in a job's spec, and their resolved values.

May not: compare groups with each other; `rules` does that.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import Field

from ddpjob_operator.api import constants
from ddpjob_operator.api.base import Model
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.fields import (
    Command,
    Count,
    DnsLabel,
    Env,
    EnvVar,
    Image,
    Processes,
    Replicas,
)
from ddpjob_operator.api.spec.resources import Resources

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


ABOVE_MAXIMUM = "is %s, above maxReplicas (%s); lower it or raise maxReplicas"
INSTEAD_OF_TEMPLATE = ("image", "command", "args", "env", "resources")


def minimum_of(group: str, default: str = "0") -> str:
    """Return CEL for the minimum of a group."""
    return f"(has({group}.minReplicas) ? {group}.minReplicas : {default})"


def _beside_template(field: str) -> Rule:
    empty = "" if field in ("image", "resources") else f" || size(self.{field}) == 0"
    return Rule(
        field=field,
        message="cannot be combined with template; move it into the template's container",
        check=lambda own: own.template is None or not getattr(own, field),
        cel=f"!has(self.template) || !has(self.{field}){empty}",
    )


def rules_of_each_group(minimum: str) -> tuple[Rule, ...]:
    """Return the rules of main and extra groups; `minimum` is CEL for the minimum of the group."""
    size, most = "self.replicas", "self.maxReplicas"
    return (
        Rule(
            field="minReplicas",
            message=ABOVE_MAXIMUM,
            values=((lambda own: own.least, minimum), (lambda own: own.max_replicas, most)),
            check=lambda own: own.in_order,
            cel=f"!has({most}) || {minimum} <= {most}",
        ),
        Rule(
            field="replicas",
            message=ABOVE_MAXIMUM,
            values=((lambda own: own.replicas, size), (lambda own: own.max_replicas, most)),
            check=lambda own: not own.in_order or own.replicas <= own.most,
            cel=f"!has({most}) || {size} <= {most} || {minimum} > {most}",
        ),
        Rule(  # CEL cannot read a template
            field="template",
            message="has no command in the container that trains; give what it is to run",
            check=lambda own: own.template is None or _command(own, own),
        ),
        *map(_beside_template, INSTEAD_OF_TEMPLATE),
    )


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
    image: Image | None = Field(
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

    @property
    def least(self) -> int:
        """Minimum number of workers of this group."""
        raise NotImplementedError

    @property
    def most(self) -> int:
        """Maximum number of workers of this group."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def in_order(self) -> bool:
        """True if the minimum is not above the maximum that the user gave."""
        return self.max_replicas is None or self.least <= self.max_replicas


class ExtraWorkerGroup(WorkerFields):
    """A further group, for workers of another kind."""

    RULES = (
        *rules_of_each_group(minimum_of("self")),
        Rule(
            field="name",
            message=f"'{constants.MAIN_GROUP}' is the main group's name; choose another one",
            check=lambda group: group.name != constants.MAIN_GROUP,
            cel=f"self.name != '{constants.MAIN_GROUP}'",
        ),
    )

    name: DnsLabel = Field(description="Name of the group, unique in the job.")
    min_replicas: Replicas = Field(
        default=0,
        description="Minimum number of workers of this group. Workers of other groups do not "
        "count.",
    )

    @property
    def least(self) -> int:
        """Minimum number of workers of this group."""
        return self.min_replicas


def resolve(main: WorkerFields, own: WorkerFields, name: str, gpu_resource: str) -> Group:
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
        minimum=own.least,
        maximum=own.most,
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
