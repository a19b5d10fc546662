"""Rejections: failed requests to the API server, as the planner reads them."""

from __future__ import annotations

import re

from ddpjob_operator.api.constants import Reason
from ddpjob_operator.kube.interface import ApiError, UnreachableError
from ddpjob_operator.planner.observed import Rejection

REFUSED = (400, 403, 422)  # an unchanged retry gets the same answer


def rejection_of(name: str, error: ApiError | UnreachableError, action: str) -> Rejection:
    """Return the rejection of the object of this name."""
    if not isinstance(error, ApiError) or error.status not in REFUSED:
        return Rejection(name, Reason.API_SERVER_FAILS, f"{action} {name} failed: {error}")
    quota = re.search("exceeded quota|failed quota", error.message)
    reason = Reason.QUOTA_EXCEEDED if quota else Reason.POD_REFUSED
    return Rejection(name, reason, error.message)
