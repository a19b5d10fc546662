"""Explanations of the reasons of events: what has changed in a job."""

from __future__ import annotations

from ddpjob_operator.api.constants import EventReason
from ddpjob_operator.api.reasons.entry import NOTHING, Entry

EVENTS = {
    EventReason.STARTED: Entry(
        "Enough workers came, and formed the first membership.", "The job trains.", NOTHING
    ),
    EventReason.WORKER_LOST: Entry(
        "A worker is gone unexpectedly: its node, its pod or its network failed.",
        "The others regroup without it. It costs no restart of the application's budget.",
        "Nothing, unless it happens often. Then look at the nodes that the events name.",
    ),
    EventReason.RESTARTED: Entry(
        "The script failed on a worker. The message names the rank and the cause.",
        "All processes start again, and resume from the newest snapshot. It counts against"
        " maxRestarts.application.",
        "Read the traceback: ddpjob logs NAME --failed.",
    ),
    EventReason.WORKER_LEFT: Entry(
        "A worker left by agreement: its node was drained, or the job has fewer replicas.",
        "The others continue without it.",
        NOTHING,
    ),
    EventReason.WORKER_JOINED: Entry(
        "A worker joined the membership.", "The job trains with one more worker.", NOTHING
    ),
    EventReason.WORKER_REPLACED: Entry(
        "A worker is gone, has ended, or leaves a node that new pods avoid (failurePolicy.avoidNodes)."
        " The message has the reason.",
        "A new pod takes its place, and joins when a node is free.",
        "Nothing for a lost node. For a worker that ended by its own doing, read its log. Repair a"
        " node that the job avoids.",
    ),
    EventReason.RENDEZVOUS_REPLACED: Entry(
        "The rendezvous pod runs, but is not ready or does not answer.",
        "A pod of the next term takes over, and learns the membership from the agents. Training"
        " continues.",
        "Look at the node that the event names.",
    ),
    EventReason.STEPS_REPEATED: Entry(
        "The newest snapshot was older than the last step that was done.",
        "These steps are done again. Their number is in status.restarts.repeatedSteps.",
        "Save more often with snapshot.everySteps if too many steps are repeated.",
    ),
    EventReason.PROGRESS_RESUMED: Entry(
        "A step was done after a time without progress.",
        "The condition Stalled with reason NoProgress has ended.",
        NOTHING,
    ),
    EventReason.FAILED: Entry(
        "The job has failed. The message has the reason of the condition Failed.",
        "Its pods end. keepPods decides which of them stay.",
        "Look up the reason in the message.",
    ),
    EventReason.RESUMED: Entry(
        "spec.suspend is false again.", "The job resumes from its newest snapshot.", NOTHING
    ),
    EventReason.POD_NOT_KEPT: Entry(
        "Another container of a worker's pod still ran 30 s after the end of the job.",
        "The pod is deleted with its log, although keepPods would keep it. It would hold its GPUs.",
        "Write the sidecar as an init container with restartPolicy: Always.",
    ),
}
