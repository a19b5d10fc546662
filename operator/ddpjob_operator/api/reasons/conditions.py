"""Explanations of the reasons of conditions: of jobs that run, wait, are stalled, or have ended."""

from __future__ import annotations

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.api.reasons.entry import NOTHING, Entry

RUNS = {
    Reason.TRAINING: Entry(
        "The processes of a membership run.",
        "The job trains. The message has the number of workers, and the warnings that hold.",
        NOTHING,
    ),
    Reason.WAITING: Entry(
        "The rendezvous service forms a membership, or waits for enough workers, or for the end of a"
        " backoff after a failure. The message names which.",
        "No process trains. The job uses no budget meanwhile.",
        "Bring nodes back or lower minReplicas if too few workers can run. Else nothing.",
    ),
    Reason.NO_REPORT: Entry(
        "The rendezvous service does not answer the operator.",
        "Running is Unknown. The workers continue to train, but lost workers are not replaced.",
        "Nothing if it passes within seconds. Else see ServiceUnreachable.",
    ),
    Reason.RENDEZVOUS_NOT_READY: Entry(
        "The rendezvous pod of a new job has not started, or does not answer yet.",
        "The job waits for it.",
        "Nothing at first. If it lasts, the message has the words of the kubelet.",
    ),
    Reason.DRAINING: Entry(
        "Workers must leave: their pods are being deleted, their nodes are drained, or there are too"
        " many workers.",
        "The job forms a membership without them, after a last step that is saved if the script allows"
        " it.",
        NOTHING,
    ),
    Reason.JOINING: Entry(
        "Workers have a node and have not joined the membership yet.",
        "The job trains without them until they join.",
        "Nothing. The message has the reason. joinPolicy and minSecondsBetweenJoins decide when they join.",
    ),
    Reason.AT_SIZE: Entry(
        "All wanted workers are in the membership.", "The job trains at its full size.", NOTHING
    ),
    Reason.PARTLY_PLACED: Entry(
        "Some of the wanted workers have no node, or cannot start.",
        "The job trains with the others. The message names the first that waits, and why.",
        "Add nodes or free some, correct what the message names, or lower replicas.",
    ),
    Reason.GATED: Entry(
        "Scheduling gates hold pods of the job, for example those of Kueue.",
        "The job starts without these pods if minReplicas allows it. They join once they are admitted.",
        "Admit the pods by the queue or the controller of the gates.",
    ),
    Reason.SUSPENDED: Entry(
        "spec.suspend is true, or the job has 0 replicas.",
        "No pod of the job runs. Its snapshots stay.",
        "Set spec.suspend to false, or run ddpjob resume. The job resumes from its newest snapshot.",
    ),
}

STALLED = {
    Reason.TOO_FEW_PLACED: Entry(
        "Fewer workers than minReplicas have a node.",
        "The job waits, and uses no budget. With room for the minimum it starts smaller.",
        "Add nodes, free some, ask for fewer resources, or lower minReplicas.",
    ),
    Reason.WORKER_SILENT: Entry(
        "The pod of a worker is Running, but the rendezvous service receives nothing from it. Its node"
        " or its network is broken, or its container is frozen.",
        "The job trains without the worker. After orphanSeconds and 15 s its pod is deleted and"
        " replaced.",
        "Look at the node and at its network. If it recovers before, the worker joins again by itself.",
    ),
    Reason.NOT_CONNECTED: Entry(
        "A pod has run for 150 s, and its agent has never reached the rendezvous service.",
        "The job trains without the worker if minReplicas allows it. The pod stays.",
        "Allow connections between the pods of the job to port 29400, and to DNS. Check network"
        " policies, and read the log of the pod.",
    ),
    Reason.WORKER_NOT_STARTED: Entry(
        "A pod has had a node for ten minutes, and its container has not started: a volume, a device,"
        " the network, or a long pull of its image.",
        "The job trains without the worker if minReplicas allows it. The pod stays.",
        "Read the events of the pod. Wait for a large image. If the node is at fault, cordon the node"
        " and delete the pod.",
    ),
    Reason.SERVICE_UNREACHABLE: Entry(
        "The rendezvous pod is ready, but the operator gets no answer from it: a network policy, a"
        " firewall, or a refused key.",
        "The job trains and regroups by itself, but lost workers are not replaced.",
        "Allow connections from the operator's namespace to port 29400 of the rendezvous pods. If the"
        " error is 403, delete the rendezvous pod.",
    ),
    Reason.RENDEZVOUS_NOT_PLACED: Entry(
        "No node has taken the rendezvous pod for 10 s.",
        "A new job waits. Workers that train continue.",
        "Make room for a small pod, or correct the tolerations and the node selector of the job.",
    ),
    Reason.RENDEZVOUS_FAILS: Entry(
        "The container of the rendezvous service has ended three times, or the service cannot evaluate"
        " the state of the job.",
        "Processes that train continue. Changes of the workers wait.",
        "Read the log of the rendezvous pod and report the error. Check that the agent's image fits the"
        " architecture of the node. Delete the pod to start the service again.",
    ),
    Reason.WORKERS_FAIL: Entry(
        "Workers end by their own doing, one after the other. The message has the exit code and the"
        " last words.",
        "Each is replaced after a pause that doubles, up to 300 s. A worker that had joined counts"
        " against maxRestarts.application, and the job fails when that is used up.",
        "Read the log of the worker: ddpjob logs NAME --failed.",
    ),
    Reason.IMAGE_NOT_PULLED: Entry(
        "The node cannot pull the image of a pod.",
        "The job waits for the pod.",
        "Correct the name and the tag of the image, or give the pod the pull secret that it needs.",
    ),
    Reason.PYTHON_MISSING: Entry(
        "The image has no python3 on its PATH, or one older than 3.9.",
        "The agent cannot start. Pods are replaced after pauses that double.",
        "Add python3 to the image, or name another image.",
    ),
    Reason.CONTAINER_CANNOT_START: Entry(
        "The container runtime of the node refuses the container, or a ConfigMap, a Secret or a user"
        " that the pod names does not fit.",
        "The job waits for the pod.",
        "Correct what the message names: the image, the command, a volume or the securityContext.",
    ),
    Reason.OUT_OF_MEMORY: Entry(
        "A container used more memory than its limit, and the kernel killed it, or one of its"
        " processes.",
        "The worker is replaced after a pause, or starts its processes again. Each such end counts"
        " against maxRestarts.application.",
        "Raise the memory limit in resources, or make the script use less.",
    ),
    Reason.DISK_LIMIT: Entry(
        "A pod used more of its node's disk than it may, and the kubelet evicted it.",
        "Snapshots on the disk of the pod are lost. The worker is replaced after a pause, and counts"
        " against maxRestarts.application.",
        "Raise the sizeLimit of the emptyDir or the limit of ephemeral-storage, lower snapshot.keep, or"
        " save to a claim.",
    ),
    Reason.QUOTA_EXCEEDED: Entry(
        "A ResourceQuota of the namespace has no room for a pod.",
        "The job starts without the pod if minReplicas allows it. The operator tries again after 1 s to"
        " 60 s.",
        "Raise the quota, end other jobs, or ask for fewer resources.",
    ),
    Reason.POD_REFUSED: Entry(
        "The API server rejects a pod of the job: its template is invalid, or an admission rule"
        " refuses it.",
        "The job starts without the pod if minReplicas allows it. The operator tries again after 1 s to"
        " 60 s.",
        "Correct the template by the words of the API server in the message.",
    ),
    Reason.NAME_TAKEN: Entry(
        "An object of another owner has the name of a pod or of the Service of this job.",
        "The operator does not touch that object, and tries again every 10 s.",
        "Delete the object that the message names, or give the job another name. A pod that is left"
        " over may still train.",
    ),
    Reason.API_SERVER_FAILS: Entry(
        "A request of the operator failed: the API server or an admission webhook does not answer.",
        "The other requests of the job are sent. The failed one is sent again after 1 s to 60 s.",
        "Repair the webhook or the API server that the message names.",
    ),
    Reason.VOLUME_MISSING: Entry(
        "A pod names a volume claim that does not exist.",
        "The job waits for the pod.",
        "Create the claim, or name one that exists.",
    ),
    Reason.VOLUME_NOT_SHARED: Entry(
        "The workers are on several nodes, but only one node can use the claim of the snapshots.",
        "Workers on the other nodes find no snapshot, or cannot start.",
        "Use a claim with access mode ReadWriteMany.",
    ),
    Reason.INVALID_SPEC: Entry(
        "This version of the operator refuses the stored spec of the job.",
        "A job that has trained runs to its end without the refused fields. Any other job waits.",
        "Correct the fields that the message names. ddpjob validate shows each with its remedy.",
    ),
    Reason.NO_PROGRESS: Entry(
        "No step was done for 20 usual steps and at least 60 s: a process hangs in a collective, a data"
        " loader or a lock, or an evaluation takes long. At the end of the training, commands have not"
        " ended for ten minutes more.",
        "Nothing is killed or restarted, unless failurePolicy.onHang is Restart. The message names the"
        " ranks that the others wait for.",
        "Read the logs of these workers, or run py-spy dump on their processes. Nothing is to be done"
        " for an evaluation.",
    ),
}

ENDED = {
    Reason.COMPLETED: Entry(
        "The command ended with exit code 0 on all workers.",
        "The job is complete, and its pods end.",
        NOTHING,
    ),
    Reason.APPLICATION_FAILED: Entry(
        "The script failed more often than maxRestarts.application allows, or a rule of"
        " failurePolicy.rules or the kind of the failure excludes a restart.",
        "The job has failed. The message has the traceback of the rank that failed first.",
        "Correct the script. A new job of the same name resumes from the last snapshot.",
    ),
    Reason.COMMAND_FAILED: Entry(
        "The command cannot be executed, or python finds no script.",
        "The job fails at once, without restarts.",
        "Correct spec.command, or add the program or the script to the image.",
    ),
    Reason.TOO_MANY_LOSSES: Entry(
        "More workers were lost than maxRestarts.infrastructure allows.",
        "The job has failed.",
        "Look at the nodes that were lost, and raise maxRestarts.infrastructure or omit it.",
    ),
    Reason.DEADLINE_EXCEEDED: Entry(
        "The job ran for longer than activeDeadlineSeconds.",
        "The job has failed, and its workers are stopped.",
        "Raise activeDeadlineSeconds. A new job of the same name resumes from the last snapshot.",
    ),
}
