"""Whether workers that start again find what a script without ddpjob_trainer saved.

Such a script (L0) reads its own file at its start. Where each worker has a disk of its own, and
nobody keeps the file, ranks begin from different ones, or the work is gone with its worker.

That it is such a script nobody says: it shows by what it does not report. Scripts with
`Snapshots` or `Loop` do so before their first step. After so long it is certain enough, and in
time: no worker is let into an L0 job earlier than that (minSecondsBetweenJoins).

May not: look into a volume; one that may be shared counts as shared.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ddpjob_operator.api.spec import DDPJobSpec
from ddpjob_operator.api.worker_groups import Group
from ddpjob_operator.planner.observed import Observed
from ddpjob_protocol.control import Report, ServiceState

SILENT_SECONDS = 300.0  # of a membership whose processes tell of no snapshot, not even of none
# Volumes that hold nothing which a worker on another node could find.
PRIVATE = frozenset(("emptyDir", "configMap", "secret", "downwardAPI", "projected", "image"))
NOT_SHARED = (
    "the script reports no snapshots, and each worker has a disk of its own: a worker that starts "
    "again would not find the file that the script saved on another one; name it in "
    "snapshot.files, or save to a claim with access mode ReadWriteMany (snapshot.storage)"
)


def not_shared(observed: Observed, report: Report | None, now: datetime) -> str:
    """What is wrong and what to do; empty when nothing is, or it is not certain yet."""
    at = not_shared_at(observed, report)
    return NOT_SHARED if at is not None and now >= at else ""


def not_shared_at(observed: Observed, report: Report | None) -> datetime | None:
    """From when on it is certain, if nothing else is reported until then."""
    spec = observed.job.spec
    if observed.one_file_system or spec.snapshot.files or _may_be_shared(spec):
        return None
    if sum(group.maximum for group in spec.groups()) < 2:
        return None
    if report is None or report.state is not ServiceState.RUNNING or not report.memberships:
        return None
    resumed = any(each.resumed_step is not None for each in report.memberships)
    if report.live or resumed or report.snapshot_step is not None or observed.job.status.snapshot:
        return None
    since = datetime.fromtimestamp(report.memberships[-1].since, UTC)
    return since + timedelta(seconds=SILENT_SECONDS)


def _may_be_shared(spec: DDPJobSpec) -> bool:
    storage = spec.snapshot.storage
    given = storage is not None and _is_shareable(storage)
    return given or any(_mounts_shareable(group) for group in spec.groups())


def _mounts_shareable(group: Group) -> bool:
    pod = (group.template or {}).get("spec")
    volumes = pod.get("volumes") if isinstance(pod, dict) else None
    return isinstance(volumes, list) and any(map(_is_shareable, volumes))


def _is_shareable(volume: object) -> bool:
    """Whether its source is anything but a disk of the pod's own."""
    if not isinstance(volume, dict):
        return True
    sources = set(volume) - {"name"}
    return bool(sources - PRIVATE)
