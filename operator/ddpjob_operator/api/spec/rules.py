"""The rules between fields of a spec, and between a spec and its extra groups.

May not: check a group alone; `worker_groups` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_operator.api import cel
from ddpjob_operator.api.rule import Rule
from ddpjob_operator.api.spec.command_rules import COMMAND_RULES
from ddpjob_operator.api.spec.fields import GPU_RESOURCE
from ddpjob_operator.api.spec.group_rule import GroupRule
from ddpjob_operator.api.spec.pod.pod_template import gives_command, limit_of, own_trainer
from ddpjob_operator.api.spec.sagemaker import LAUNCHERS
from ddpjob_operator.api.spec.worker_groups import (
    WorkerFields,
    minimum_of,
    rules_of_each_group,
)

if TYPE_CHECKING:
    from ddpjob_operator.api.spec.job import DDPJobSpec
    from ddpjob_operator.api.spec.worker_groups import Group

REQUIRED = "FieldValueRequired"
PAUSED = cel.paused("self")


# --- sizes ---------------------------------------------------------------------------------------

MINIMUM = minimum_of("self", "(self.replicas == 0 ? 0 : 1)")
MINIMUM_OF_GROUP = minimum_of("g")
BELOW_MINIMUM = "is %s, below minReplicas (%s); raise it or lower minReplicas"


def _reaches_minimum(spec: DDPJobSpec, own: WorkerFields) -> bool:
    return spec.paused or not own.in_order or own.replicas >= own.least


def _reaches_minimum_in_cel(own: str, minimum: str) -> str:
    in_order = f"(!has({own}.maxReplicas) || {minimum} <= {own}.maxReplicas)"
    return f"{PAUSED} || !{in_order} || {own}.replicas >= {minimum}"


SIZES = (
    *rules_of_each_group(MINIMUM),
    Rule(
        field="replicas",
        message=BELOW_MINIMUM,
        values=(
            (lambda spec: spec.replicas, "self.replicas"),
            (lambda spec: spec.least, MINIMUM),
        ),
        check=lambda spec: _reaches_minimum(spec, spec),
        cel=_reaches_minimum_in_cel("self", MINIMUM),
    ),
    GroupRule(
        field="replicas",
        message=BELOW_MINIMUM,
        values=(
            (lambda _, group: group.replicas, "g.replicas"),
            (lambda _, group: group.least, MINIMUM_OF_GROUP),
        ),
        check=_reaches_minimum,
        cel=_reaches_minimum_in_cel("g", MINIMUM_OF_GROUP),
    ),
    GroupRule(  # in the CRD, the name is the key of the list
        field="name",
        message="'%s' is another group's name already; choose another one",
        values=((lambda _, group: group.name, "g.name"),),
        check=lambda spec, group: group is _first_of_name(spec, group.name),
    ),
)


def _first_of_name(spec: DDPJobSpec, name: str) -> WorkerFields:
    return next(group for group in spec.extra_worker_groups if group.name == name)


# --- what a worker runs --------------------------------------------------------------------------

GPU_LIMIT = "is given, and a limit of %s, too; remove one of the two"
RESOURCE = f"(has(self.gpuResource) ? self.gpuResource : '{GPU_RESOURCE}')"


NO_COMMAND = (
    "has no command in the container that trains; give spec.command, or the container's command"
)


def _resolved(spec: DDPJobSpec, own: WorkerFields) -> Group:
    return spec.groups()[1 + spec.extra_worker_groups.index(own)]


def _gives_gpus_once(spec: DDPJobSpec, own: WorkerFields) -> bool:
    limits = (own.resources and own.resources.limits) or {}
    limited = spec.gpu_resource in limits or limit_of(own_trainer(own), spec.gpu_resource)
    return own.gpus_per_worker is None or not limited


def _gives_gpus_once_in_cel(own: str) -> str:
    limits = f"has({own}.resources) && has({own}.resources.limits)"
    return f"!has({own}.gpusPerWorker) || !({limits} && {RESOURCE} in {own}.resources.limits)"


SOURCES = (
    Rule(
        field="command",
        message="is missing; give what each worker runs, for example [torchrun, train.py]",
        check=lambda spec: spec.command or (spec.template is not None and spec.sagemaker is None),
        cel=f"(has(self.template) && !has(self.sagemaker)) || {cel.given('self.command')}",
        reason=REQUIRED,
    ),
    Rule(  # the local back end needs no image
        field="image",
        message="is missing; give the image that the workers run",
        cel="has(self.template) || has(self.image)",
        reason=REQUIRED,
    ),
    Rule(  # CEL cannot read a template
        field="template",
        message=NO_COMMAND,
        check=lambda spec: spec.template is None or spec.groups()[0].command,
    ),
    GroupRule(
        field="template",
        message=NO_COMMAND,
        check=lambda spec, group: group.template is None or _resolved(spec, group).command,
    ),
    Rule(
        field="gpusPerWorker",
        message=GPU_LIMIT,
        values=((lambda spec: spec.gpu_resource, RESOURCE),),
        check=lambda spec: _gives_gpus_once(spec, spec),
        cel=_gives_gpus_once_in_cel("self"),
    ),
    GroupRule(
        field="gpusPerWorker",
        message=GPU_LIMIT,
        values=((lambda spec, _: spec.gpu_resource, RESOURCE),),
        check=_gives_gpus_once,
        cel=_gives_gpus_once_in_cel("g"),
    ),
)


# --- SageMaker ---------------------------------------------------------------------------------

DISTRIBUTION = "self.sagemaker.distribution"
BY_TORCHRUN = (name for name, launcher in LAUNCHERS.items() if launcher == "torchrun")
RESOLVED = (
    f"({cel.is_one_of(DISTRIBUTION, 'mpi')} ? 'mpi' : "
    f"{cel.is_one_of(DISTRIBUTION, *BY_TORCHRUN)} ? 'torchrun' : 'python')"
)
SAGEMAKER = (
    Rule(  # CEL cannot read a template
        field="template",
        message="has a command or args in the container that trains, but sagemaker starts the "
        "entry point of spec.command; remove them",
        check=lambda spec: spec.sagemaker is None or not gives_command(spec),
    ),
    Rule(
        field="command",
        message="must begin with the entry point, such as train.py; "
        "sagemaker.distribution chooses the launcher",
        check=lambda spec: (
            spec.sagemaker is None or not spec.command or spec.command[0].endswith(".py")
        ),
        cel=f"!(has(self.sagemaker) && {cel.given('self.command')}) || "
        "self.command[0].endsWith('.py')",
    ),
    Rule(
        field="launcher",
        message="is set by sagemaker.distribution; remove it",
        check=lambda spec: (
            spec.sagemaker is None or spec.launcher in ("torchrun", spec.sagemaker.launcher)
        ),
        cel="!has(self.sagemaker) || !has(self.launcher) || self.launcher == 'torchrun' || "
        f"self.launcher == {RESOLVED}",
    ),
)


SPEC_RULES = (*SIZES, *SOURCES, *COMMAND_RULES, *SAGEMAKER)
