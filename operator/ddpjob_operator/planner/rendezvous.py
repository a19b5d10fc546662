"""The rendezvous service of a job: its term, its creation and its end.

May not: know the workers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpjob_operator.api import constants
from ddpjob_operator.api.status import RendezvousFailures
from ddpjob_operator.planner.actions import Action, CreateRendezvous, DeleteRendezvous
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.silence import takeover
from ddpjob_operator.planner.silence.silent_service import silent_service
from ddpjob_protocol.messages.control import Report
from ddpjob_protocol.messages.membership import MembershipId


def current_report(observed: Observed) -> Report | None:
    """Return the report, or None if it has expired or is older than the recorded state."""
    report, seen, status = observed.report, observed.rendezvous, observed.job.status
    if report is None or silent_service(observed) is not None:
        return None
    if seen is not None and seen.term < status.rendezvous_term:
        return None
    if report.membership is None or status.membership is None:
        return report
    overtaken = report.membership.id < MembershipId.parse(status.membership.id)
    return None if overtaken else report


def next_term(observed: Observed) -> tuple[int, int]:
    """Return the term for the status, and the last term whose service was observed."""
    seen, status = observed.rendezvous, observed.job.status
    if seen is not None and seen.term >= status.rendezvous_term:
        return seen.term, seen.term
    gone = status.observed_rendezvous_term == status.rendezvous_term
    return status.rendezvous_term + gone, status.observed_rendezvous_term


def remove_rendezvous(observed: Observed) -> Iterator[Action]:
    """Delete the pods of the service."""
    if observed.rendezvous is not None:
        yield DeleteRendezvous(observed.rendezvous.term)
    for ended in observed.terminated_terms:
        yield DeleteRendezvous(ended)


def replace_rendezvous(
    observed: Observed, failures: RendezvousFailures | None, avoid: tuple[str, ...]
) -> Iterator[Action]:
    """Create the service of the present term, and delete those that it replaces."""
    seen, status = observed.rendezvous, observed.job.status
    term = status.rendezvous_term
    for ended in observed.terminated_terms:
        yield DeleteRendezvous(ended)
    overtaken = seen is not None and failures is not None and failures.term == seen.term
    if seen is not None and seen.term >= term and not observed.is_outdated(seen) and not overtaken:
        return
    if seen is not None:
        yield DeleteRendezvous(seen.term)
        if seen.term >= term:
            return  # the next pass counts its successor
    if status.observed_rendezvous_term < term:
        name = constants.rendezvous_name(observed.job.metadata.name, term)
        nodes = sorted({*avoid, *takeover.avoided(observed)})
        yield CreateRendezvous(name, term, tuple(nodes))
