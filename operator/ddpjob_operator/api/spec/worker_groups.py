"""Groups of workers: the fields in a job's spec, and their resolved values.

May not: compare groups with each other; `rules` does that.
"""

from __future__ import annotations

import dataclasses

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
from ddpjob_operator.api.spec.pod.free_form import FreeForm
from ddpjob_operator.api.spec.pod.pod_template import (
    Template,
    build_template,
    command_of,
    env_of,
    is_complete,
    limit_of,
    stray_fields,
    trainer,
)
from ddpjob_operator.api.spec.pod.strategic_merge import unknown_directives
from ddpjob_operator.api.spec.resources import Resources


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
    template: Template  # of its pods, with the fields above; a null is a default to leave out

    @property
    def env(self) -> tuple[EnvVar, ...]:
        """The variables of the container that trains, one of each name."""
        return env_of(self.template)


ABOVE_MAXIMUM = "is %s, above maxReplicas (%s); lower it or raise maxReplicas"
NOT_A_PART = (
    "has '%s', which is not a field of a pod template; "
    "move it into template.spec, or into the container in template.spec.containers"
)
UNKNOWN_DIRECTIVE = (
    "has '%s', which is not supported; use $patch: delete, $patch: replace, or null for a field"
)


def minimum_of(group: str, default: str = "0") -> str:
    """Return CEL for the minimum of a group."""
    return f"(has({group}.minReplicas) ? {group}.minReplicas : {default})"


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
            message=NOT_A_PART,
            values=((lambda own: stray_fields(own.template)[0], ""),),
            check=lambda own: not stray_fields(own.template),
        ),
        Rule(
            field="template",
            message=UNKNOWN_DIRECTIVE,
            values=((lambda own: next(unknown_directives(own.template)), ""),),
            check=lambda own: not any(unknown_directives(own.template)),
        ),
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
    template: FreeForm | None = Field(
        default=None,
        description="Further fields of the pods, as in the template of a Deployment: metadata and "
        "spec. They are merged over image, command, args, env and resources, which describe the "
        "container 'trainer'. If no container has that name, and no command is given, the first "
        "container trains. An extra group's template is merged over the main group's pod, unless "
        "it gives image and command itself.",
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


def resolve(
    main: WorkerFields, own: WorkerFields, name: str, gpu_resource: str, pod: Template
) -> Group:
    """Return a group with its defaults; `pod` is the template of the main group."""
    heirs = own if own is not main and is_complete(own) else main
    template = pod if own is main else build_template(own, pod if heirs is main else None)
    gpus = _gpus(own, template, gpu_resource)
    if gpus is None and heirs is main:
        gpus = _gpus(main, pod, gpu_resource)
    gpus = gpus or 0
    processes = own.processes_per_worker or heirs.processes_per_worker or "auto"
    return Group(
        name=name,
        replicas=own.replicas,
        minimum=own.least,
        maximum=own.most,
        gpus=gpus,
        processes=(gpus or 1) if processes == "auto" else processes,
        image=trainer(template).get("image"),
        command=command_of(template),
        template=template,
    )


def _gpus(fields: WorkerFields, template: Template, resource: str) -> int | None:
    """Return the GPUs that the fields or the limits of the pod request, or None."""
    if fields.gpus_per_worker is not None:
        return fields.gpus_per_worker
    return limit_of(trainer(template), resource) or None
