"""The answer of a rendezvous service with each field, and what the operator makes of an answer."""

from __future__ import annotations

import json

from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import FileSyncReport, RankGroup, Report, Stall, WorkerRanks
from ddpjob_protocol.messages.warnings import JobWarning
from support.builders import NOW, make_job, make_report
from support.planning import W0, W1, decide

SINCE = NOW.timestamp()
FULL = make_report(
    W0, W1, step=7, step_at=SINCE, steps_per_second=2.5, total_steps=90, metrics={"loss": 0.5},
    snapshot_step=5, failure=Failure(SINCE, "boom", "Traceback", rank=0, exit_code=1),
    stall=Stall(SINCE, 7, 0.4, (RankGroup((0, 1), (W0.name,), 7, "a.py:7"),)),
    warnings=(JobWarning("Unreachable", "cannot reach it", W0.name, SINCE),),
    files=FileSyncReport(SINCE, 5), ranks=(WorkerRanks(W0.name, 0, 1), WorkerRanks(W1.name, 1, 1)),
)  # fmt: skip
MAX_STATUS_BYTES = 1_000_000  # etcd takes an object of 1.5 MB


def check(report: Report) -> None:
    """Check that the planner makes a status of it that an API server takes."""
    status = decide(make_job(2), (W0,), report=report).status.to_json()
    assert len(json.dumps(status, allow_nan=False)) < MAX_STATUS_BYTES
