"""The DDPJob custom resource: the one source of its fields, defaults, rules and documentation.

The CRD is generated from these models. This module checks rules between fields; each message names
the field and the remedy. `cel_rules` holds the rules for the API server. `errors` translates all
other validation errors.
May not: act on a job, or know an observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal, Self

from annotated_types import MaxLen
from pydantic import Field, model_validator
from pydantic.alias_generators import to_snake

from ddpjob_operator.api import constants
from ddpjob_operator.api.base import InvalidError, Model, ObservedModel, Path, Problem
from ddpjob_operator.api.fields import (
    MAX_GROUPS,
    Count,
    Elastic,
    FailurePolicy,
    Flag,
    JobName,
    Network,
    Positive,
    Replicas,
    Scheduling,
    SnapshotSpec,
    Text,
)
from ddpjob_operator.api.sagemaker import ONE_ENTRY_POINT, SageMaker
from ddpjob_operator.api.sagemaker import find_problems as sagemaker_problems
from ddpjob_operator.api.status import DDPJobStatus
from ddpjob_operator.api.torchrun_command import is_standalone, runs_torchrun
from ddpjob_operator.api.worker_groups import ExtraWorkerGroup, Group, WorkerFields, limit, resolve
from ddpjob_protocol.control import Policy

__all__ = ["DDPJob", "DDPJobSpec", "DDPJobStatus", "ExtraWorkerGroup", "Group", "Metadata"]

# Fields without an implementation: any value is rejected. A version that implements a field removes
# its row.
NOT_YET = (
    "scheduling",
    "ttlSecondsAfterFinished",
)


INSTEAD_OF_TEMPLATE = ("image", "command", "args", "env", "resources")
BESIDE_MAIN_TEMPLATE = (
    "has image, command, args, env or resources beside the main group's template; "
    "give the group a template of its own"
)
NOT_BELOW = {
    "python": "is python, but a command runs torchrun, which would know of one worker only; "
    "leave launcher away",
    "mpi": "is mpi, but a command runs torchrun, which would run at the first worker only; "
    "leave launcher away, or put mpirun in its place",
}
MPIRUN_STARTS_ALL = (
    "is never run: mpirun starts the processes of all workers, from the first one; remove it"
)


class DDPJobSpec(WorkerFields):
    """The desired state of a job; the spec itself holds the main group of workers."""

    min_replicas: Replicas | None = Field(
        default=None,
        description="Minimum number of workers, from any group, with which the job runs. The minimum "
        "of each extra group is added. Defaults to 1, or to 0 if the main group has no workers.",
    )
    gpu_resource: Text = Field(
        default="nvidia.com/gpu", description="Resource that gpusPerWorker counts."
    )
    extra_worker_groups: Annotated[tuple[ExtraWorkerGroup, ...], MaxLen(MAX_GROUPS)] = Field(
        default=(), description="Further groups of workers."
    )
    elastic: Elastic = Field(default=Elastic(), description="Rules for changes of the membership.")
    snapshot: SnapshotSpec = Field(
        default=SnapshotSpec(), description="Storage of the training state."
    )
    sagemaker: SageMaker | None = Field(
        default=None, description="Settings for scripts that were written for SageMaker."
    )
    failure_policy: FailurePolicy = Field(
        default=FailurePolicy(), description="Limits of restarts after failures."
    )
    launcher: Literal["torchrun", "python", "mpi"] = Field(
        default="torchrun",
        description="Launcher of the processes. torchrun: the command must run torchrun. python: the "
        "command is the process, or starts its own processes. mpi: one worker runs mpirun, which "
        "starts the processes of all workers.",
    )
    network: Network = Field(default=Network(), description="Network settings of the processes.")
    scheduling: Scheduling | None = Field(default=None, description="Placement of the workers.")
    suspend: Flag = Field(default=False, description="If true, the job pauses.")
    active_deadline_seconds: Positive | None = Field(
        default=None, description="Seconds after which a job that still runs fails."
    )
    ttl_seconds_after_finished: Count | None = Field(
        default=None, description="Seconds after which a finished job is deleted."
    )
    keep_pods: Literal["Failed", "All", "Never"] = Field(
        default="Failed",
        description="Workers that are kept, with their logs, after the job has finished: Failed, "
        "All or Never.",
    )

    @property
    def paused(self) -> bool:
        """True if the job is suspended or scaled to zero."""
        return self.suspend or not any(group.replicas for group in self.groups())

    @property
    def minimum(self) -> int:
        """Minimum number of workers over all groups."""
        return max(1, sum(group.minimum for group in self.groups()))

    @property
    def resolved_launcher(self) -> str:
        """The launcher, from `sagemaker` or from `launcher`."""
        return self.launcher if self.sagemaker is None else self.sagemaker.launcher

    @property
    def entry_point(self) -> tuple[str, ...]:
        """The command as the user gave it, with its arguments."""
        return (*(self.command or ()), *(self.args or ()))

    def groups(self) -> tuple[Group, ...]:
        """Return all groups, the main group first."""
        minimum, main = self.min_replicas, self
        least = min(1, self.replicas) if minimum is None else minimum
        if self.sagemaker is not None and self.entry_point:
            whole = self.sagemaker.command(self.entry_point)
            main = self.model_copy(update={"command": whole, "args": None})
        own = resolve(main, main, constants.MAIN_GROUP, least, self.gpu_resource)
        extra = (
            resolve(main, group, group.name, group.min_replicas, self.gpu_resource)
            for group in self.extra_worker_groups
        )
        return (own, *extra)

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [
            *_size(self),
            *_groups(self),
            *_template(self),
            *_snapshot(self),
            *_launcher(self),
            *_sagemaker(self),
            *_not_yet(self),
        ]
        if problems:
            raise InvalidError(problems)
        return self


class Metadata(ObservedModel):
    """The part of a Kubernetes object's metadata that matters here."""

    name: JobName = Field(description="Name of the job, unique in its namespace.")
    namespace: Text = Field(default="default", description="Namespace of the job.")
    uid: str = Field(default="", description="Identity that the API server assigned.")
    generation: int = Field(default=1, description="Counts changes of the spec.")
    creation_timestamp: datetime | None = Field(
        default=None, description="Time when the job was created."
    )
    deletion_timestamp: datetime | None = Field(
        default=None, description="Set while the job is being deleted."
    )


class DDPJob(Model):
    """An elastic PyTorch DDP job."""

    api_version: Literal["ddpjob.io/v1alpha1"] = Field(
        default="ddpjob.io/v1alpha1", description="Version of this resource."
    )
    kind: Literal["DDPJob"] = Field(default="DDPJob", description="Always DDPJob.")
    metadata: Metadata = Field(description="Name and namespace of the job.")
    spec: DDPJobSpec = Field(description="Desired state of the job.")
    status: DDPJobStatus = Field(default=DDPJobStatus(), description="Observed state of the job.")

    def policy(self) -> Policy:
        """Return the numbers that the rendezvous service uses for its decisions."""
        spec = self.spec
        policy = Policy(
            minimum=spec.minimum,
            minimums=tuple(
                (constants.worker_group(self.metadata.name, group.name), group.min_replicas)
                for group in spec.extra_worker_groups
                if group.min_replicas
            ),
            startup_wait=spec.elastic.startup_wait_seconds,
            settle=spec.elastic.settle_seconds,
            join_policy=spec.elastic.join_policy,
            min_between_joins=spec.elastic.min_seconds_between_joins,
            max_join_wait=spec.elastic.max_join_wait_seconds,
            max_failures=spec.failure_policy.max_restarts.application,
            max_losses=spec.failure_policy.max_restarts.infrastructure,
            backoff=spec.failure_policy.backoff_seconds,
            files=bool(spec.snapshot.files),
        )
        silence = spec.elastic.heartbeat_seconds
        if silence is None:
            return policy
        return dataclasses.replace(policy, heartbeat_deadline=silence, live_deadline=silence)

    @model_validator(mode="after")
    def _check(self) -> Self:
        longest = max((group.name for group in self.spec.groups()), key=len)
        length = len(self.metadata.name) + len(longest)
        if length > constants.MAX_NAMES:
            message = f"is too long: with '{longest}', the longest name of a group, it has {length}"
            hint = f" characters; shorten it to {constants.MAX_NAMES} together"
            raise InvalidError([Problem(("metadata", "name"), message + hint)])
        return self


def _size(spec: DDPJobSpec) -> Iterator[Problem]:
    groups = spec.groups()
    parts: list[Path] = [(), *(("extraWorkerGroups", i) for i in range(len(groups) - 1))]
    fields = (spec, *spec.extra_worker_groups)
    for at, own, group in zip(parts, fields, groups, strict=True):
        size, least, most = group.replicas, group.minimum, group.maximum
        if own.max_replicas is not None and least > most:
            message = f"is {least}, above maxReplicas ({most}); lower it or raise maxReplicas"
            yield Problem((*at, "minReplicas"), message)
        elif size < least and not spec.paused:
            message = f"is {size}, below minReplicas ({least}); raise it or lower minReplicas"
            yield Problem((*at, "replicas"), message)
        elif size > most:
            message = f"is {size}, above maxReplicas ({most}); lower it or raise maxReplicas"
            yield Problem((*at, "replicas"), message)


def _groups(spec: DDPJobSpec) -> Iterator[Problem]:
    taken = set[str]()
    for i, group in enumerate(spec.extra_worker_groups):
        at: Path = ("extraWorkerGroups", i, "name")
        if group.name == constants.MAIN_GROUP:
            yield Problem(at, f"'{group.name}' is the main group's name; choose another one")
        elif group.name in taken:
            yield Problem(at, f"'{group.name}' is another group's name already; choose another one")
        taken.add(group.name)


def _template(spec: DDPJobSpec) -> Iterator[Problem]:
    if spec.template is None and not spec.command:
        message = "is missing; give what each worker runs, for example [torchrun, train.py]"
        yield Problem(("command",), message)
    groups = enumerate(spec.extra_worker_groups)
    every: list[tuple[Path, WorkerFields]] = [
        ((), spec),
        *((("extraWorkerGroups", i), group) for i, group in groups),
    ]
    for (at, own), group in zip(every, spec.groups(), strict=True):
        if own.template is not None and not group.command:
            message = "has no command in the container that trains; give what it is to run"
            yield Problem((*at, "template"), message)
        limits = (own.resources and own.resources.limits) or {}
        limited = spec.gpu_resource in limits or limit(own.template, spec.gpu_resource)
        if own.gpus_per_worker is not None and limited:
            message = f"is given, and a limit of {spec.gpu_resource}, too; remove one of the two"
            yield Problem((*at, "gpusPerWorker"), message)
        given = [field for field in INSTEAD_OF_TEMPLATE if getattr(own, field)]
        if own.template is None and spec.template is not None and given:
            yield Problem(at, BESIDE_MAIN_TEMPLATE)
        for field in given if own.template is not None else ():
            message = "cannot be combined with template; move it into the template's container"
            yield Problem((*at, field), message)


def _snapshot(spec: DDPJobSpec) -> Iterator[Problem]:
    if spec.snapshot.uri is not None and spec.snapshot.storage is not None:
        message = "is given, and snapshot.storage, too; remove one of the two"
        yield Problem(("snapshot", "uri"), message)


def _launcher(spec: DDPJobSpec) -> Iterator[Problem]:
    message = NOT_BELOW.get(spec.launcher)
    if message and any(runs_torchrun(each.command) for each in spec.groups()):
        yield Problem(("launcher",), message)
    never = ONE_ENTRY_POINT if spec.sagemaker else MPIRUN_STARTS_ALL
    for i, group in enumerate(spec.extra_worker_groups):
        if (spec.sagemaker or spec.launcher == "mpi") and (group.command or group.args):
            field = "command" if group.command else "args"
            yield Problem(("extraWorkerGroups", i, field), never)
    several = sum(group.maximum for group in spec.groups()) > 1
    if several and any(is_standalone(group.command) for group in spec.groups()):
        message = "has --standalone, which is for a job of one worker; remove it, or the others"
        yield Problem(("command",), message)


def _sagemaker(spec: DDPJobSpec) -> Iterator[Problem]:
    if spec.sagemaker is not None:
        template = spec.template is not None
        found = sagemaker_problems(
            spec.sagemaker, spec.entry_point, spec.launcher, template=template
        )
        yield from (Problem(tuple(field.split(".")), message) for field, message in found)


def _not_yet(spec: DDPJobSpec) -> Iterator[Problem]:
    for field in NOT_YET:
        if getattr(spec, to_snake(field)) is not None:
            yield Problem((field,), "is not supported by this version; remove it")
