"""The DDPJob under construction: metadata, command, processes and the order of its fields."""

from __future__ import annotations

import re
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.convert.commands import convert_command
from ddpjob_operator.convert.fields import Fields, Note, Object
from ddpjob_operator.convert.pods import FROM_SERVER, gpu_resource

ORDER = (
    "image", "launcher", "command", "args", "replicas", "minReplicas", "maxReplicas",
    "processesPerWorker", "gpuResource", "env", "resources", "template", "extraWorkerGroups",
)  # fmt: skip
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PLACEHOLDER = ["torchrun", "train.py"]
MAX_DIGITS = 9  # of a number of processes
MAX_JOB_NAME = constants.MAX_NAMES - len(constants.MAIN_GROUP)
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUED = (
    "is not set: Kueue queues the pods of a DDPJob, not the job (docs/guides/kueue.md), so nothing"
    " would resume it"
)
FIXED_SIZE = (
    "the job had a fixed size, so it waits for all workers; lower minReplicas to make it elastic"
)


def open_object(document: object, notes: list[Note]) -> tuple[Fields, Object]:
    """Return the fields of a foreign object, and the metadata for the DDPJob."""
    fields = Fields(document, "", notes)
    for key in ("apiVersion", "kind", "status"):
        fields.take(key)
    return fields, _read_metadata(fields.child("metadata"))


def _read_metadata(metadata: Fields) -> Object:
    """Return name, namespace, labels and annotations for the DDPJob."""
    given = str(metadata.take("name") or metadata.take("generateName") or "")
    name = re.sub(r"[^-a-z0-9]+", "-", given.lower()).strip("-")[:MAX_JOB_NAME].strip("-")
    if not name[:1].isalpha():
        name = f"job-{name}".strip("-")[:MAX_JOB_NAME].strip("-")
    if name != given:
        metadata.note("name", f"{given!r} cannot be the name of a DDPJob; {name} is used")
    found: Object = {"name": name}
    if namespace := metadata.take("namespace"):
        found["namespace"] = namespace
    annotations = metadata.child("annotations")
    annotations.take(LAST_APPLIED)
    for key, values in (("labels", metadata.child("labels")), ("annotations", annotations)):
        if not values.is_empty:
            found[key] = values.rest()
    for key in (*FROM_SERVER, "managedFields", "ownerReferences", "finalizers"):
        metadata.take(key)
    metadata.close()
    return found


def set_command(group: Object, path: str, notes: list[Note], *, entry_point: str) -> str:
    """Replace the command of a group by one for ddpjob; return the launcher.

    `entry_point` is the reason why the file may lack a command.
    """
    words = [*map(str, group.get("command") or ()), *map(str, group.get("args") or ())]
    if not group.get("command"):
        arguments = f", then its arguments {words}" if words else ""
        notes.append(
            Note(
                f"{path}.command",
                f"{entry_point}. Write the command instead of torchrun train.py{arguments}",
            )
        )
        group["command"] = [*PLACEHOLDER]
        return "torchrun"
    found = convert_command(words)
    if found.removed:
        flags = ", ".join(found.removed)
        notes.append(Note(f"{path}.command", f"ddpjob sets these flags: {flags}"))
    notes += [Note(f"{path}.command", warning) for warning in found.pinned]
    if found.words != tuple(words):
        group["command"] = list(found.words)
        group.pop("args", None)
    if found.processes:
        group.setdefault("processesPerWorker", found.processes)
    return found.launcher


def set_processes(group: Object, path: str, notes: list[Note]) -> None:
    """Replace the number of processes by a number or auto."""
    value = group.pop("processesPerWorker", None)
    text = str(value)
    if text.isdecimal() and len(text) <= MAX_DIGITS and int(text) >= 1:
        group["processesPerWorker"] = int(text)
    elif text in ("auto", "gpu"):
        group["processesPerWorker"] = "auto"
    elif value is not None:
        reason = f"{text} has no counterpart; auto is one process for each GPU, or one without GPUs"
        notes.append(Note(path, reason))


def set_sizes(
    spec: Object, least: int | None, most: int | None, notes: list[Note], path: str
) -> None:
    """Set the limits of the size; a job without them keeps its fixed size."""
    size = int(spec["replicas"])
    if least is None:
        spec["minReplicas"] = size
        if size > 1:
            notes.append(Note(path, FIXED_SIZE))
        return
    spec["minReplicas"] = least
    if most is not None:
        spec["maxReplicas"] = max(most, size)
    if size < least:
        notes.append(Note(path, f"replicas {size} is below minReplicas {least}, which is used"))
        spec["replicas"] = least


def set_suspend(spec: Object, metadata: Object, fields: Fields) -> None:
    """Suspend the job as the source is; a job in a queue of Kueue is suspended only there."""
    if not fields.take("suspend"):
        return
    if QUEUE in metadata.get("labels", {}):
        fields.note("suspend", QUEUED)
    else:
        spec["suspend"] = True


def build_job(metadata: Object, spec: Object) -> Object:
    """Return the DDPJob with its fields in the usual order."""
    resource = gpu_resource(spec)
    if resource and resource != "nvidia.com/gpu":
        spec["gpuResource"] = resource
    if spec.get("launcher") == "torchrun":
        del spec["launcher"]
    known = {key: spec[key] for key in ORDER if key in spec}
    others: dict[str, Any] = {key: value for key, value in spec.items() if key not in known}
    return {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        "metadata": metadata,
        "spec": {**known, **others},
    }
