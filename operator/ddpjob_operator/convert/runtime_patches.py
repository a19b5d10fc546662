"""Reads what a TrainJob changes in its runtime: podTemplateOverrides, and runtimePatches since 2.2.

Kubeflow Trainer merges them over the runtime as strategic merge patches, one after the other.
"""

from __future__ import annotations

import yaml

from ddpjob_operator.api.spec.pod.strategic_merge import merge
from ddpjob_operator.convert.fields import Fields, Object
from ddpjob_operator.convert.pods import TRAINER, read_env

NODE = "node"  # the name of the job and of the container that train
NOT_NODE = "only what is for the job 'node' is carried over; this is for {}"
NOT_WHOLE = (
    "changes a container of {}, which is not in the file: write the whole container. It has {}"
)


def read_patches(spec: Fields, found: Object, metadata: Object, runtime: str) -> Object:
    """Return the pod template for the nodes; add variables to `found`, labels to `metadata`."""
    template: Object = {}
    for pod in (*_overridden(spec), *_patched(spec, metadata)):
        merged = merge(template, _read_pod(pod, template, found, runtime))
        template = {key: value for key, value in merged.items() if value is not None}
    return template


def _overridden(spec: Fields) -> list[Fields]:
    """Return the pod templates of podTemplateOverrides for the nodes."""
    pods = []
    for override in _entries(spec, "podTemplateOverrides"):
        targets = [str(each.take("name")) for each in _entries(override, "targetJobs")]
        if targets and NODE not in targets:
            override.note("", NOT_NODE.format(", ".join(targets)))
            continue
        pods.append(override)
    return pods


def _patched(spec: Fields, metadata: Object) -> list[Fields]:
    """Return the pod templates of runtimePatches for the nodes."""
    pods = []
    for patch in _entries(spec, "runtimePatches"):
        for key in ("manager", "time"):  # the writer of the entry, and its time
            patch.take(key)
        runtime = patch.child("trainingRuntimeSpec")
        job_set = runtime.child("template")
        _add_metadata(job_set, metadata)
        jobs = job_set.child("spec")
        for job in _entries(jobs, "replicatedJobs"):
            name = str(job.take("name"))
            if name != NODE:
                job.note("", NOT_NODE.format(name))
                continue
            template = job.child("template")
            _add_metadata(template, metadata)
            inner = template.child("spec")
            pods.append(inner.child("template"))
            for each in (inner, template, job):
                each.close()
        for each in (jobs, job_set, runtime, patch):
            each.close()
    return pods


def _add_metadata(holder: Fields, metadata: Object) -> None:
    """Add the labels and annotations of a JobSet or Job; those of the TrainJob itself win."""
    own = holder.child("metadata")
    for key in ("labels", "annotations"):
        values = own.child(key).rest()
        if values:
            metadata[key] = {**values, **metadata.get(key, {})}
    own.close()


def _read_pod(pod: Fields, template: Object, found: Object, runtime: str) -> Object:
    """Return one pod template as a patch; variables of the trainer go to `found`."""
    metadata = pod.child("metadata").rest_with_maps("labels", "annotations")
    own = pod.child("spec")
    spec: Object = {}
    for key in ("initContainers", "containers"):
        known = [each["name"] for each in template.get("spec", {}).get(key, ())]
        for container in _entries(own, key):
            name = str(container.take("name"))
            if key == "containers" and name in (NODE, TRAINER):
                name = TRAINER
                _read_trainer(container, found)
            rest = container.rest()
            if name != TRAINER and name not in known and "image" not in rest:
                content = yaml.safe_dump(rest, default_flow_style=True, width=10_000).strip()
                container.note("", f"{name} " + NOT_WHOLE.format(runtime, content))
            elif rest:
                spec.setdefault(key, []).append({"name": name, **rest})
    spec |= own.rest()
    pod.close()
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def _read_trainer(container: Fields, found: Object) -> None:
    if entries := container.take("env"):
        new = read_env(entries, container)
        names = {entry["name"] for entry in new}
        found["env"] = [*(e for e in found.get("env", ()) if e["name"] not in names), *new]


def _entries(fields: Fields, key: str) -> list[Fields]:
    """Return the mappings of a list and remove it."""
    path, entries = fields.at(key), fields.take_list(key)
    return [Fields(each, f"{path}[{i}]", fields.notes) for i, each in enumerate(entries)]
