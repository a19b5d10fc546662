"""Builds the Kubernetes event about a job.

May not: decide what is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.manifests.pieces import Manifest
from ddpjob_operator.planner.actions import Event
from ddpjob_protocol.text import ends

MAX_MESSAGE = 1024  # characters; limit of the API server


def build_event(job: Mapping[str, Any], event: Event, now: datetime) -> Manifest:
    """Return an event; `job` is the metadata of the job."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        "apiVersion": constants.API_VERSION,
        "kind": constants.KIND,
        **{field: job[field] for field in ("name", "namespace", "uid")},
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job['name']}-", "namespace": job["namespace"]},
        "involvedObject": about,
        "reason": event.reason,
        "message": ends(event.message, MAX_MESSAGE),
        "type": "Warning" if event.warning else "Normal",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "ddpjob-operator"},
        "reportingComponent": "ddpjob.io/operator",
    }
