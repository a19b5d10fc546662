"""Describes objects of another owner that have the name of an object of a job.

May not: call the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpjob_operator.api import constants
from ddpjob_operator.api.spec import DDPJob
from ddpjob_operator.controller.objects.children import Plural
from ddpjob_operator.manifests.parse import controller

KINDS: Mapping[Plural, str] = {
    "pods": "Pod",
    "services": "Service",
    "networkpolicies": "NetworkPolicy",
}


def describe_foreign(job: DDPJob, plural: Plural, metadata: Mapping[str, Any]) -> str:
    """Return why an object that another owner has is in the way, and what to do."""
    it = f"{KINDS[plural]} '{metadata['name']}'"
    of_such_a_job = (metadata.get("labels") or {}).get(constants.LABEL_JOB) == job.metadata.name
    if controller(metadata) and of_such_a_job:
        return f"{it} of an earlier job of this name still exists; waiting for its deletion"
    if of_such_a_job:
        gone = "is left over from a job of this name that was deleted with --cascade=orphan"
        use = ", may still train" if plural == "pods" else ""
        return f"{it} {gone}{use}; delete it"
    return f"{it} exists and does not belong to this job; delete or rename it"
