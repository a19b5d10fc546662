"""The pod template of a group of workers: the short fields, with `template` merged over them.

The short fields (image, command, args, env, resources) describe the container that trains. That is
the container named `trainer`. If the template has none of that name and no command is given beside
it, the first container of the template trains.

An extra group starts from the pod of the main group. Its own short fields, and then its own
template, are merged over that pod. A group's template that gives image and command to the container
that trains is complete: the group inherits nothing.
May not: validate a template, whose values may have any type; the API server validates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddpjob_operator.api.spec.fields import EnvVar
from ddpjob_operator.api.spec.pod.strategic_merge import DIRECTIVE, REPLACE, merge

if TYPE_CHECKING:
    from ddpjob_operator.api.spec.worker_groups import WorkerFields

Template = dict[str, Any]
TRAINER = "trainer"  # name of the container that trains; default: the first container
PARTS = ("metadata", "spec")  # fields of a template
# Fields of a pod's spec that a template may set, in Kubernetes 1.34.
_OF_A_POD = """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
    enableServiceLinks hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride
    imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy
    priorityClassName readinessGates resourceClaims runtimeClassName schedulerName schedulingGates
    securityContext serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain
    terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
"""
# Fields of a container only.
_OF_A_CONTAINER = """
    envFrom imagePullPolicy lifecycle livenessProbe ports readinessProbe resizePolicy startupProbe
    stdin terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts
    workingDir
"""
# Fields that ddpjob or Kubernetes sets.
_OTHERS_OF_A_POD = "ephemeralContainers priority resources restartPolicy serviceAccount"
# Fields that a job or a pod has, too, or that only an init container needs.
_OTHERS_OF_A_CONTAINER = """
    args command env image name resources restartPolicy restartPolicyRules securityContext stdinOnce
"""
POD_FIELDS = frozenset(_OF_A_POD.split())
OTHER_POD_FIELDS = frozenset(_OTHERS_OF_A_POD.split())
CONTAINER_FIELDS = frozenset(_OF_A_CONTAINER.split())
OTHER_CONTAINER_FIELDS = frozenset(_OTHERS_OF_A_CONTAINER.split())


def build_template(own: WorkerFields, inherited: Template | None = None) -> Template:
    """Return the pod template of a group; `inherited` is the template of the main group."""
    base = inherited or {}
    short = _short_fields(own)
    if short:
        name = trainer_name(own) if inherited is None else trainer(base).get("name", TRAINER)
        base = merge(base, {"spec": {"containers": [{"name": name, **short}]}})
    return merge(base, own.template or {})


def is_complete(own: WorkerFields) -> bool:
    """Return whether the group's template alone describes a pod that trains."""
    container = trainer(own.template)
    return not own.command and bool(container.get("image")) and bool(_words(container, "command"))


def trainer(template: Template | None) -> dict[str, Any]:
    """Return the container that trains, or an empty one; accept a template of any shape."""
    found = list(_containers(template))
    return next((c for c in found if c.get("name") == TRAINER), next(iter(found), {}))


def trainer_name(own: WorkerFields) -> str:
    """Return the name of the container that the short fields describe."""
    name = trainer(own.template).get("name")
    return name if isinstance(name, str) and not own.command else TRAINER


def own_trainer(own: WorkerFields) -> dict[str, Any]:
    """Return the part of the template about the container that the short fields describe."""
    name = trainer_name(own)
    found = (each for each in _containers(own.template) if each.get("name", TRAINER) == name)
    return next(found, {})


def gives_command(own: WorkerFields) -> bool:
    """Return whether the template has a command or arguments for the container that trains."""
    container = own_trainer(own)
    return bool(container.get("command") or container.get("args"))


def command_of(template: Template) -> tuple[str, ...]:
    """Return the command of the container that trains, with its arguments."""
    container = trainer(template)
    return (*_words(container, "command"), *_words(container, "args"))


def env_of(template: Template) -> tuple[EnvVar, ...]:
    """Return the variables of the container that trains; skip entries that are not valid."""
    entries = trainer(template).get("env")
    return tuple(_variables(entries if isinstance(entries, list) else []))


def limit_of(container: dict[str, Any], resource: str) -> int:
    """Return the limit of a resource that is counted, or 0."""
    value = at(at(container.get("resources"), "limits"), resource)
    return int(str(value)) if str(value).isdecimal() else 0


def stray_fields(template: Template | None) -> list[str]:
    """Return the fields at the top of a template that have no effect there."""
    return [str(field) for field in template or {} if field not in PARTS]


def _short_fields(own: WorkerFields) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if own.image:
        given["image"] = own.image
    if own.command:
        given |= {"command": list(own.command), "args": None}  # inherited arguments go
    if own.args:
        given["args"] = list(own.args)
    if own.env:
        given["env"] = [_as_patch(entry) for entry in own.env]
    if own.resources:
        amounts = own.resources.to_json().items()
        texts = {kind: {name: str(each) for name, each in some.items()} for kind, some in amounts}
        given["resources"] = {DIRECTIVE: REPLACE, **texts}
    return given


def _as_patch(entry: EnvVar) -> dict[str, Any]:
    """Return an entry that replaces an inherited variable as a whole."""
    if entry.value_from is None:
        return {"name": entry.name, "value": entry.value, "valueFrom": None}
    source = {DIRECTIVE: REPLACE, **entry.value_from}
    return {"name": entry.name, "value": entry.value or None, "valueFrom": source}


def _variables(entries: list[Any]) -> Iterator[EnvVar]:
    for entry in entries:
        name, value = at(entry, "name"), at(entry, "value")
        source = at(entry, "valueFrom")
        if isinstance(name, str) and (isinstance(value, str) or value is None):
            yield EnvVar.model_construct(
                name=name,
                value=value or "",
                value_from=source if isinstance(source, dict) else None,
            )


def _containers(template: Template | None) -> Iterator[dict[str, Any]]:
    containers = at(at(template, "spec"), "containers")
    for each in containers if isinstance(containers, list) else ():
        if isinstance(each, dict):
            yield each


def _words(container: dict[str, Any], field: str) -> tuple[str, ...]:
    value = container.get(field)
    return tuple(map(str, value)) if isinstance(value, list) else ()


def at(value: object, key: str) -> Any:
    """Return a value of a mapping, or None if there is none or `value` is not a mapping."""
    return value.get(key) if isinstance(value, dict) else None
