"""Fields of other tools, and the field of a DDPJob that does the same.

Sources: torchrun, Slurm, Kubeflow (PyTorchJob, TrainJob), Kubernetes (Job), Ray, Docker Compose.
Keys are in lower case, without '_' and '-'. Values are paths below the spec.
"""

ALIASES = {
    **dict.fromkeys(
        ("gpus", "gpu", "numgpus", "ngpus", "gpuspernode", "gpucount"), "gpusPerWorker"
    ),
    **dict.fromkeys(
        ("nodes", "nnodes", "numnodes", "workers", "numworkers", "parallelism", "size", "count"),
        "replicas",
    ),
    **dict.fromkeys(("minnodes", "minworkers", "minavailable", "minsize"), "minReplicas"),
    **dict.fromkeys(("maxnodes", "maxworkers", "maxsize"), "maxReplicas"),
    **dict.fromkeys(
        ("nprocpernode", "numprocpernode", "procspernode", "processes", "nproc", "ntaskspernode"),
        "processesPerWorker",
    ),
    **dict.fromkeys(
        ("backofflimit", "maxretries", "retries", "maxfailures", "restarts", "restartpolicy"),
        "failurePolicy.maxRestarts.application",
    ),
    **dict.fromkeys(("ttl", "ttlseconds", "ttlafterfinished"), "ttlSecondsAfterFinished"),
    **dict.fromkeys(
        ("timeout", "deadline", "timelimit", "activedeadline"), "activeDeadlineSeconds"
    ),
    **dict.fromkeys(("cleanpodpolicy", "keeppod", "podcleanuppolicy"), "keepPods"),
    **dict.fromkeys(("environment", "envvars", "variables", "envs"), "env"),
    **dict.fromkeys(("entrypoint", "cmd", "run", "script", "program"), "command"),
    **dict.fromkeys(("arguments", "argv"), "args"),
    **dict.fromkeys(("containerimage", "dockerimage"), "image"),
    **dict.fromkeys(
        ("groups", "workergroups", "workergroupspecs", "pytorchreplicaspecs", "replicaspecs"),
        "extraWorkerGroups",
    ),
    **dict.fromkeys(("cpu", "cpus", "memory", "mem"), "resources.limits"),
    **dict.fromkeys(("checkpoint", "checkpoints", "snapshots"), "snapshot"),
    **dict.fromkeys(("checkpointdir", "checkpointpath", "snapshotdir"), "snapshot.storage"),
    **dict.fromkeys(("paused", "pause", "suspended"), "suspend"),
    **dict.fromkeys(("priorityclass", "priority"), "scheduling.priorityClassName"),
    "elasticpolicy": "elastic",
    "volume": "template.spec.volumes",
    "shmsize": "template.spec.volumes",
    **dict.fromkeys(("serviceaccount", "sa"), "template.spec.serviceAccountName"),
    "runtimeclass": "template.spec.runtimeClassName",
    **dict.fromkeys(("pullsecrets", "imagepullsecret"), "template.spec.imagePullSecrets"),
    **dict.fromkeys(
        ("graceperiod", "graceperiodseconds"), "template.spec.terminationGracePeriodSeconds"
    ),
    **dict.fromkeys(("snapshotevery", "saveevery", "savesteps"), "snapshot.everySteps"),
}
INNER = {"failurePolicy.maxRestarts": "application", "network": "interface"}
"""Objects of the spec, and the field of each that a single value for the whole object means."""


def canonical(field: str) -> str:
    """Return a field's name as the table has it."""
    return field.replace("_", "").replace("-", "").lower()
