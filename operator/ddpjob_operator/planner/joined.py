"""Workers that have joined the job at some time, as far as report and status know.

May not: decide anything.
"""

from __future__ import annotations

from ddpjob_operator.api.spec import DDPJob
from ddpjob_protocol.messages.control import Report


def joined_ever(job: DDPJob, report: Report | None) -> set[str]:
    """Return the workers known to have registered or to have been in a membership."""
    known = set(job.status.membership.workers if job.status.membership else ())
    if report is not None:
        known.update(report.workers, *(each.workers for each in report.memberships))
        known.update(members_of(report))
    return known


def members_of(report: Report) -> set[str]:
    """Return the workers of the newest membership."""
    return {m.worker for m in report.membership.members} if report.membership else set()
