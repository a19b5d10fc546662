"""Converts the pod template of a training job into the fields of a group of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ddpjob_operator.api.spec.fields import ENV_PREFIX, GPU_RESOURCE
from ddpjob_operator.convert.fields import ConvertError, Fields, Object

TRAINER = "trainer"
SHORT_FIELDS = ("image", "command", "args", "env", "resources")
SET_BY_DDPJOB = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "NODE_RANK", "NNODES",
)  # fmt: skip
PREFIXES = ("PET_", ENV_PREFIX)
FROM_SERVER = ("creationTimestamp", "name", "namespace", "resourceVersion", "uid", "generation")


def read_group(template: Fields, names: Iterable[str]) -> Object:
    """Return the fields of a group; the container with one of the names trains, or the first."""
    metadata, spec = template.child("metadata"), template.child("spec")
    for key in FROM_SERVER:
        metadata.take(key)
    spec.drop("an agent restarts the processes, and ddpjob replaces lost workers", "restartPolicy")
    containers = [
        Fields(each, f"{spec.at('containers')}[{i}]", [])
        for i, each in enumerate(spec.take_list("containers"))
    ]
    if not containers:
        raise ConvertError(f"{spec.at('containers')}: is empty; give the container that trains")
    found = [each.rest() for each in containers]
    main = next((i for i, each in enumerate(found) if each.get("name") in [*names]), 0)
    container = Fields(found.pop(main), f"{spec.at('containers')}[{main}]", template.notes)
    group = read_container(container)
    overlay = container.rest()
    overlay.pop("name", None)
    rest = spec.rest()
    pod = {"containers": [{"name": TRAINER, **overlay}, *found], **rest}
    own = metadata.rest()
    if own or overlay or found or rest:
        group["template"] = {**({"metadata": own} if own else {}), "spec": pod}
    template.close()
    return group


def read_container(container: Fields) -> Object:
    """Return image, command, args, env and resources of a container or a trainer."""
    found: Object = {}
    for key in SHORT_FIELDS:
        read = READERS.get(key)
        value = read(container, key) if read else container.take(key)
        if key == "env" and value is not None:
            value = read_env(value, container)
        if value not in (None, [], {}):
            found[key] = value
    return found


def take_resources(container: Fields, key: str) -> Object:
    """Return the resources of a container and remove them."""
    return container.child(key).rest_with_maps("limits", "requests")


READERS: dict[str, Callable[[Fields, str], Any]] = {
    "command": Fields.take_list,
    "args": Fields.take_list,
    "resources": take_resources,
}


def read_env(entries: Any, container: Fields) -> list[Object]:
    """Return the variables that a DDPJob may have, the last one of each name."""
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and "name" in e for e in entries
    ):
        raise ConvertError(f"{container.at('env')}: must be a list of variables with names")
    kept: dict[str, Object] = {}
    for entry in entries:
        name = str(entry["name"])
        if name in SET_BY_DDPJOB or name.startswith(PREFIXES):
            container.note(f"env.{name}", "ddpjob sets it for each membership")
            continue
        if name in kept:
            container.note(f"env.{name}", "is given twice; the last one counts")
        kept.pop(name, None)
        value = entry.get("value")
        kept[name] = {**entry, **({"value": str(value)} if value is not None else {})}
    return list(kept.values())


def gpu_resource(group: Object) -> str:
    """Return the resource that counts the GPUs of a group, or an empty text without GPUs."""
    resources = group.get("resources")
    limits = resources.get("limits") if isinstance(resources, dict) else None
    names = [
        str(name)
        for name in (limits if isinstance(limits, dict) else ())
        if "/" in str(name) and "gpu" in str(name)
    ]
    return GPU_RESOURCE if GPU_RESOURCE in names else next(iter(names), "")


def as_template(group: Object) -> Object:
    """Return a group whose template has the whole pod, so that it inherits nothing."""
    short = {key: group[key] for key in SHORT_FIELDS if key in group}
    template = group.get("template") or {"spec": {"containers": [{"name": TRAINER}]}}
    first, *others = template["spec"]["containers"]
    spec = {**template["spec"], "containers": [{**first, **short}, *others]}
    return {"template": {**template, "spec": spec}}
