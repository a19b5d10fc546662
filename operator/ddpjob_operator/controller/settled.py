"""Knows the versions of jobs that need no pass: nothing is new in them, and nothing is left to do.

Each write of a status is an event of the job's watch, also for the operator that has written it. A
pass over it would read the job again and plan the same. So the pass that writes plans once more, with
the status as the API server stores it. If that plan changes nothing, the version is settled. Any
other version is news: a change by a user or by another operator, or a write whose answer was lost.
May not: read or write an object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.planner.observed import Observed
from ddpjob_operator.planner.planner import Plan, plan
from ddpjob_operator.planner.silence.silent_workers import nodes_to_ask
from ddpjob_operator.rendezvous.session_pool import Key


class Settled:
    """The newest settled version of each job."""

    def __init__(self) -> None:
        self._versions: dict[Key, str] = {}

    def note(self, key: Key, raw: Mapping[str, Any]) -> None:
        """Note that the job as the API server stores it needs no pass."""
        self._versions[key] = raw["metadata"]["resourceVersion"]

    def covers(self, key: Key, version: str) -> bool:
        """Return whether this version of a job needs no pass."""
        return bool(version) and self._versions.get(key) == version

    def forget(self, key: Key) -> None:
        """Drop what is known of a job that no longer exists."""
        self._versions.pop(key, None)


def plan_again(observed: Observed, planned: Plan, written: DDPJob, now: datetime) -> Plan | None:
    """Return the plan for the written status; None if the job needs a pass of its own.

    An action needs a pass over what it has done, and a silent worker one that reads its node's Lease.
    """
    report, workers = observed.report, observed.workers
    asked = nodes_to_ask(observed.job, report, workers)
    if planned.actions or nodes_to_ask(written, report, workers) != asked:
        return None
    again = plan(dataclasses.replace(observed, job=written), now)
    same = again.status == written.status and again.expectation == planned.expectation
    return again if same and not again.actions and not again.events else None
