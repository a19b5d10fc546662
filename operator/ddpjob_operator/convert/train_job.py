"""Converts a TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1).

The runtime that it names is another object, so what that one adds is not known here.
"""

from __future__ import annotations

from ddpjob_operator.convert import draft
from ddpjob_operator.convert.fields import ConvertError, Fields, Note, Object
from ddpjob_operator.convert.pods import TRAINER, read_container, read_env

NODE = "node"  # the name of the job and of the container that train
LISTS = ("volumes", "initContainers", "tolerations", "imagePullSecrets", "schedulingGates")
BY_NAME = "volumeMounts"
NOT_NODE = "only overrides of the job 'node' are carried over; this one is for {}"


def convert(document: Object, notes: list[Note]) -> Object:
    """Return the DDPJob; record in `notes` what it does not contain."""
    job, metadata = draft.open_object(document, notes)
    spec = job.child("spec")
    trainer = spec.child("trainer")
    found = read_container(trainer)
    if resources := trainer.take("resourcesPerNode"):
        found["resources"] = resources
    runtime = _read_runtime(spec, found)
    nodes, processes = trainer.take_number("numNodes"), trainer.take("numProcPerNode")
    if nodes is None:
        spec.note("trainer.numNodes", f"is missing, and {runtime} is not in the file; 1 is used")
    found["replicas"] = 1 if nodes is None else nodes
    found["launcher"] = draft.set_command(
        found, trainer.at("command")[: -len(".command")], notes,
        entry_point=f"is missing: {runtime} has it",
    )  # fmt: skip
    if processes is not None:
        found["processesPerWorker"] = processes
    draft.set_processes(found, trainer.at("numProcPerNode"), notes)
    draft.set_sizes(found, None, None, notes, "spec.trainer.numNodes")
    trainer.close()
    pod = _read_overrides(spec, found)
    for key in ("labels", "annotations"):
        if values := spec.take(key):
            pod.setdefault("metadata", {})[key] = {**values, **pod["metadata"].get(key, {})}
    if pod:
        pod.setdefault("spec", {}).setdefault("containers", [{"name": TRAINER}])
        found["template"] = pod
    if spec.take("suspend"):
        found["suspend"] = True
    spec.drop("ddpjob's own operator manages the job", "managedBy")
    loads = "ddpjob loads no data: load it in the script, or in initContainers of template"
    spec.drop(loads, "initializer", "datasetConfig", "modelConfig")
    spec.close()
    job.close()
    return draft.build_job(metadata, found)


def _read_runtime(spec: Fields, found: Object) -> str:
    reference = spec.child("runtimeRef")
    kind = reference.take("kind", "ClusterTrainingRuntime")
    reference.take("apiGroup")
    runtime = f"{kind} {reference.take('name', '')}".strip()
    reference.close()
    spec.note(
        "runtimeRef",
        f"{runtime} is another object: add what it gives the pods (volumes, variables, images)",
    )
    if "image" not in found:
        spec.note("trainer.image", f"is missing: {runtime} has it. Write it into spec.image")
        found["image"] = "IMAGE"
    return runtime


def _read_overrides(spec: Fields, found: Object) -> Object:
    """Return the pod template of all overrides for the nodes; later ones win."""
    template: Object = {}
    for i, each in enumerate(spec.take_list("podTemplateOverrides")):
        override = Fields(each, f"{spec.at('podTemplateOverrides')}[{i}]", spec.notes)
        targets = [str(t.get("name")) for t in override.take_list("targetJobs")]
        if targets and NODE not in targets:
            override.note("", NOT_NODE.format(", ".join(targets)))
            continue
        metadata, own = override.child("metadata"), override.child("spec")
        for key, value in metadata.rest().items():
            template.setdefault("metadata", {}).setdefault(key, {}).update(value)
        pod = template.setdefault("spec", {"containers": [{"name": TRAINER}]})
        for container in own.take_list("containers"):
            _read_container(Fields(container, own.at("containers"), spec.notes), pod, found)
        for key, value in own.rest().items():
            pod[key] = [*pod.get(key, []), *value] if key in LISTS else value
        override.close()
    return template


def _read_container(container: Fields, pod: Object, found: Object) -> None:
    name = container.take("name")
    if name not in (NODE, TRAINER):
        pod["containers"].append({"name": name, **container.rest()})
        return
    if entries := container.take("env"):
        new = read_env(entries, container)
        names = {entry["name"] for entry in new}
        kept = [entry for entry in found.get("env", []) if entry["name"] not in names]
        found["env"] = [*kept, *new]
    for key, value in container.rest().items():
        first = pod["containers"][0]
        if key == BY_NAME:
            if not isinstance(value, list):
                raise ConvertError(f"{container.at(key)}: must be a list; correct it")
            value = [*first.get(key, []), *value]  # noqa: PLW2901
        first[key] = value
