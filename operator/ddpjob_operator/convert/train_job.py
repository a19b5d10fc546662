"""Converts a TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1).

The runtime that it names is another object, so what that one adds is not known here.
"""

from __future__ import annotations

from ddpjob_operator.convert import draft
from ddpjob_operator.convert.fields import Fields, Note, Object
from ddpjob_operator.convert.pods import read_container, take_resources
from ddpjob_operator.convert.runtime_patches import read_patches


def convert(document: Object, notes: list[Note]) -> Object:
    """Return the DDPJob; record in `notes` what it does not contain."""
    job, metadata = draft.open_object(document, notes)
    spec = job.child("spec")
    trainer = spec.child("trainer")
    found = read_container(trainer)
    if resources := take_resources(trainer, "resourcesPerNode"):
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
    pod = read_patches(spec, found, metadata, runtime)
    for key in ("labels", "annotations"):
        if values := spec.child(key).rest():
            pod.setdefault("metadata", {})[key] = {**values, **(pod["metadata"].get(key) or {})}
    if pod:
        found["template"] = pod
    if (seconds := spec.take_number("activeDeadlineSeconds")) is not None:
        found["activeDeadlineSeconds"] = seconds
    draft.set_suspend(found, metadata, spec)
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
