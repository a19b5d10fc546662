"""Explanations of the reasons of warnings: problems that impair a job and do not end it."""

from __future__ import annotations

from ddpjob_operator.api.reasons.entry import Entry
from ddpjob_protocol.messages.warnings import WarningReason

WARNINGS = {
    WarningReason.GRACE_PERIOD_TOO_SHORT: Entry(
        "A worker was killed before its last step was done and saved.",
        "The steps since the last snapshot are lost.",
        "Raise template.spec.terminationGracePeriodSeconds if steps or saves take that long.",
    ),
    WarningReason.PROCESS_STUCK: Entry(
        "In live mode, a process hung in a step that a change of the workers had broken.",
        "It was killed after elastic.stuckSeconds, and a replacement continues. The message reports"
        " whether its state is lost.",
        "Nothing, unless it happens often. The message has the line of the script.",
    ),
    WarningReason.UNREACHABLE: Entry(
        "A worker cannot open connections to other members.",
        "The processes start in any case, and will most likely fail or wait.",
        "Allow all ports between the pods of the job. Check firewalls between nodes and"
        " network.interface.",
    ),
    WarningReason.SNAPSHOT_NOT_SHARED: Entry(
        "The script reports no snapshots, and each worker has a disk of its own.",
        "A worker that starts again may find an older file of the script, or none.",
        "Name the file in snapshot.files, or save to a claim with access mode ReadWriteMany.",
    ),
    WarningReason.SNAPSHOT_DEGRADED: Entry(
        "Saving is impaired, for example because the memory limit is too low for a copy of the state.",
        "The job trains and saves, but waits for its snapshots, or skips some.",
        "Follow the message. It has the number of missing bytes, or the volume.",
    ),
    WarningReason.DUE_NOT_CALLED: Entry(
        "Some ranks never call snapshots.due, and others do.",
        "A planned change of the workers repeats the steps since the last snapshot.",
        "Call due and save on every rank, without `if rank == 0`.",
    ),
    WarningReason.FILES_NOT_KEPT: Entry(
        "A worker cannot keep replicas of the files in snapshot.files. Its disk is most likely full.",
        "The job continues with the replicas that exist.",
        "Free space on that volume. Two replicas of the files need room.",
    ),
    WarningReason.FILES_REFUSED: Entry(
        "A replica of the script's files has other files than snapshot.files names, or impossible"
        " sizes.",
        "The worker does not use it, and the job resumes from the next newest replica.",
        "Delete the folder that the message names. Let only the job write to its volume.",
    ),
    WarningReason.SIZE_FIXED: Entry(
        "A flag of torchrun or mpirun in the command fixes the number of workers or the rendezvous.",
        "The job runs with the flag, and may keep one size.",
        "Remove the flag that the message names.",
    ),
    WarningReason.NOT_DISTRIBUTED: Entry(
        "The command does not use torchrun's rendezvous, in a job of several processes.",
        "Each worker may train by itself, and the job may complete all the same.",
        "Run the script with torchrun, or set launcher: python if it forms the group itself.",
    ),
    WarningReason.MODEL_NOT_KEPT: Entry(
        "sagemaker.model is missing.",
        "The files in SM_MODEL_DIR are deleted with their pod.",
        "Give a volume in sagemaker.model.",
    ),
    WarningReason.STORE_FULL: Entry(
        "The c10d store of the job would take too much memory of its rendezvous service, in all or"
        " for one worker.",
        "The write is refused and its client disconnected, so the processes of that worker most"
        " likely fail. The service and the other workers continue.",
        "Delete keys that no process needs, or send large data between the processes. Else raise"
        " spec.rendezvous.resources.limits.memory: three eighths of it are for the store, a quarter"
        " for one worker's keys.",
    ),
    WarningReason.INVALID_REPORT: Entry(
        "A script, an agent or the rendezvous service sent a report with an impossible value.",
        "The report is refused, and the job trains. Later reports count.",
        "Correct the script that sends it, or use an operator and images of one version.",
    ),
    WarningReason.NOT_ISOLATED: Entry(
        "The NetworkPolicy of the job cannot be created: a right is missing, or its name is taken.",
        "The job runs, and any pod may connect to its pods. The operator tries again after 1 s to 60 s.",
        "Grant the right, delete or rename the other policy, or set networkPolicy.jobs of the chart to"
        " false.",
    ),
    WarningReason.START_DELAYED: Entry(
        "A start failed for a moment: too few processes, descriptors or memory, or a program that was"
        " being written.",
        "The agent tries again for 16 s. After that it is a failure of the application.",
        "Nothing if it was once. Else follow the message.",
    ),
    WarningReason.START_SLOW: Entry(
        "Containers of workers have run for 60 s, and their agents have not registered. An agent"
        " imports torch before it registers, for at most 120 s: the disk or the node is slow.",
        "The job waits for the workers, or trains without them if minReplicas allows it.",
        "Wait. If it is so at each start, put the image or the packages on faster storage.",
    ),
    WarningReason.HANG_STACKS: Entry(
        "The job hung, and failurePolicy.onHang is Restart.",
        "The job restarts, and that counts as one failure. In live mode only the workers that the"
        " others wait for start again.",
        "Read the stacks: the message has their start, the log of each worker the whole. The rank that"
        " lags is at another line than the others.",
    ),
    WarningReason.NODES_AVOIDED: Entry(
        "A worker waits for a node, and new pods of the job avoid nodes on which its workers failed"
        " (failurePolicy.avoidNodes).",
        "The job trains without the worker if minReplicas allows it.",
        "Repair the nodes that the message names, add others, or raise failurePolicy.avoidNodes."
        " A suspension of the job ends the avoidance.",
    ),
}
