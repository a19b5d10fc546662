"""Warns if restarted workers would not find the files of a script without ddpjob_trainer.

Such a script (restart mode) reads its own file when it starts. If each worker has its own disk,
and no replica of the file exists, ranks start from different files, or the file is lost with its
worker.

No field declares restart mode; the operator infers it from the absence of reports. A script with
`Snapshots` or `Loop` reports before its first step. After SILENT_SECONDS without a report, the
inference is safe enough. The warning is also early enough: no worker joins a job in restart mode
before that time (minSecondsBetweenJoins).

May not: look into a volume; a volume that may be shared counts as shared.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.spec.worker_groups import Group
from ddpjob_operator.planner.observed import Observed
from ddpjob_protocol.messages.control import Report, ServiceState
from ddpjob_protocol.messages.warnings import JobWarning, WarningReason

SILENT_SECONDS = 300.0  # time without any report about snapshots, even an empty one
# Volumes whose files a worker on another node cannot read.
PRIVATE = frozenset(("emptyDir", "configMap", "secret", "downwardAPI", "projected", "image"))
REASON = WarningReason.SNAPSHOT_NOT_SHARED.value
NOT_SHARED = (
    "the script reports no snapshots, and each worker has a disk of its own: a worker that starts "
    "again would not find the file that the script saved on another one; name it in "
    "snapshot.files, or save to a claim with access mode ReadWriteMany (snapshot.storage)"
)


def not_shared(observed: Observed, report: Report | None, now: datetime) -> JobWarning | None:
    """Return the warning, or None if it does not apply, or not yet."""
    at = not_shared_at(observed, report)
    if at is None or now < at:
        return None
    return JobWarning(REASON, NOT_SHARED, since=at.timestamp())


def not_shared_at(observed: Observed, report: Report | None) -> datetime | None:
    """Return the time at which the warning applies without further reports, or None."""
    spec, status = observed.job.spec, observed.job.status
    if observed.one_file_system or spec.snapshot.files or _may_be_shared(spec):
        return None
    if sum(group.maximum for group in spec.groups()) < 2:
        return None
    if status.snapshot or (report is not None and _reports_snapshots(report)):
        return None
    for known in status.warnings:
        if known.reason == REASON:
            return known.since
    if report is None or report.state is not ServiceState.RUNNING or not report.memberships:
        return None
    since = datetime.fromtimestamp(report.memberships[-1].since, UTC)
    return since + timedelta(seconds=SILENT_SECONDS)


def _reports_snapshots(report: Report) -> bool:
    resumed = any(each.resumed_step is not None for each in report.memberships)
    return report.live or resumed or report.snapshot_step is not None


def _may_be_shared(spec: DDPJobSpec) -> bool:
    storage = spec.snapshot.storage
    given = storage is not None and _is_shareable(storage)
    return given or any(_mounts_shareable(group) for group in spec.groups())


def _mounts_shareable(group: Group) -> bool:
    pod = group.template.get("spec")
    volumes = pod.get("volumes") if isinstance(pod, dict) else None
    return isinstance(volumes, list) and any(map(_is_shareable, volumes))


def _is_shareable(volume: object) -> bool:
    """Return whether the volume has a source other than the pod's own disk."""
    if not isinstance(volume, dict):
        return True
    sources = set(volume) - {"name"}
    return bool(sources - PRIVATE)
