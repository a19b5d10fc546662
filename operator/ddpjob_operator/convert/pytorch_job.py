"""Converts a PyTorchJob of Kubeflow's training operator (kubeflow.org/v1)."""

from __future__ import annotations

from ddpjob_operator.convert import draft
from ddpjob_operator.convert.fields import ConvertError, Fields, Note, Object
from ddpjob_operator.convert.pods import as_template, read_group

KEEP_PODS = {"None": "All", "Running": "All", "All": "Never"}
# restartPolicy ExitCode: exit codes from 128 on are restarted, the others fail the job.
PERMANENT = {
    "action": "FailJob",
    "onExitCodes": {"operator": "In", "values": list(range(1, 128))},
}
RENDEZVOUS = "ddpjob sets the rendezvous of torchrun"
ENTRY_POINT = "is missing, and the entry point of the image is not in the file"
ONE_GROUP = (
    "Master and Worker run the same, so they are one group. torchrun assigns the ranks: rank 0 may "
    "be on any worker"
)
TWO_GROUPS = (
    "Master differs from Worker, so it is a group of its own. torchrun assigns the ranks: rank 0 "
    "may be on any worker"
)


def convert(document: Object, notes: list[Note]) -> Object:
    """Return the DDPJob; record in `notes` what it does not contain."""
    job, metadata = draft.open_object(document, notes)
    spec = job.child("spec")
    found = _read_groups(spec.child("pytorchReplicaSpecs"), notes)
    elastic, policy = spec.child("elasticPolicy"), spec.child("runPolicy")
    processes = elastic.take("nProcPerNode") or spec.take("nprocPerNode")
    spec.take("nprocPerNode")
    if processes is not None:
        found["processesPerWorker"] = processes
    draft.set_processes(found, spec.at("nprocPerNode"), notes)
    least, most = elastic.take_number("minReplicas"), elastic.take_number("maxReplicas")
    draft.set_sizes(found, least, most, notes, "spec")
    _read_elastic(elastic, found)
    _read_policy(policy, found, metadata)
    spec.close()
    job.close()
    return draft.build_job(metadata, found)


def _read_groups(replicas: Fields, notes: list[Note]) -> Object:
    groups: dict[str, Object] = {}
    for kind in ("Worker", "Master"):
        each = replicas.child(kind)
        size, policy = each.take_number("replicas"), each.take("restartPolicy")
        template = each.child("template")
        each.close()
        if template.is_empty:
            if size:
                raise ConvertError(f"{each.at('template')}: is missing; give the pods to run")
            continue
        group = read_group(template, ["pytorch"])
        path = f"{each.at('template')}.spec.containers"
        group["launcher"] = draft.set_command(group, path, notes, entry_point=ENTRY_POINT)
        group["replicas"] = 1 if size is None else size
        if policy == "Never":
            group["failurePolicy"] = {"maxRestarts": {"application": 0}}
        elif policy == "ExitCode":
            group["failurePolicy"] = {"rules": [PERMANENT]}
        groups[kind] = group
    replicas.close()
    if not groups:
        raise ConvertError("spec.pytorchReplicaSpecs: has no Worker and no Master; give one")
    main = groups.get("Worker") or groups["Master"]
    if len(groups) == 2:
        _join(main, groups["Master"], replicas)
    return main


def _join(main: Object, master: Object, replicas: Fields) -> None:
    """Add the master to the main group, or as a group of its own if it differs."""
    if {**master, "replicas": 0} == {**main, "replicas": 0}:
        main["replicas"] += master["replicas"]
        _drop_repeated(replicas.notes)
        replicas.note("Master", ONE_GROUP)
        return
    replicas.note("Master", TWO_GROUPS)
    size = master["replicas"]
    group = {"name": "master", "replicas": size, "minReplicas": size, **as_template(master)}
    main["extraWorkerGroups"] = [group]


def _drop_repeated(notes: list[Note]) -> None:
    """Drop the notes on Master that are also notes on Worker."""
    known = {
        (path.replace(".Worker.", ".Master."), why) for path, why in notes if ".Worker." in path
    }
    notes[:] = [note for note in notes if note not in known]


def _read_elastic(elastic: Fields, found: Object) -> None:
    restarts = elastic.take_number("maxRestarts")
    if restarts is not None:
        found.setdefault("failurePolicy", {})["maxRestarts"] = {"application": restarts}
    elastic.drop(RENDEZVOUS, "rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf")
    elastic.drop(RENDEZVOUS, "standalone")
    elastic.drop("point a HorizontalPodAutoscaler at the DDPJob instead", "metrics")
    elastic.close()


def _read_policy(policy: Fields, found: Object, metadata: Object) -> None:
    limit = policy.take_number("backoffLimit")
    if limit is not None:
        policies = found.setdefault("failurePolicy", {})
        policies.setdefault("maxRestarts", {"application": limit})
    for key in ("activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        seconds = policy.take_number(key)
        if seconds is not None:
            found[key] = seconds
    if keep := KEEP_PODS.get(str(policy.take("cleanPodPolicy", ""))):
        found["keepPods"] = keep
    draft.set_suspend(found, metadata, policy)
    policy.drop("ddpjob's own operator manages the job", "managedBy")
    scheduling = policy.child("schedulingPolicy")
    if name := scheduling.take("priorityClass"):
        template = found.setdefault("template", {"spec": {"containers": [{"name": "trainer"}]}})
        template["spec"].setdefault("priorityClassName", name)
    gang = "ddpjob has no gang scheduling; the job starts with minReplicas"
    scheduling.drop(gang, "minAvailable", "minResources", "queue", "scheduleTimeoutSeconds")
    scheduling.close()
    policy.close()
