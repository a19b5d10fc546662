"""The input of the checks: what the API server answered, and the findings that are the output."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

Object = dict[str, Any]


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"  # jobs may run, or the check could not be made
    FAIL = "fail"


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    state: State
    message: str
    remedy: str = ""


class Denied(NamedTuple):
    """An answer that the user has no right to read."""

    reason: str


class Right(NamedTuple):
    """A verb on a resource; a subresource follows a slash."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        suffix = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{suffix}"


Objects = Sequence[Object] | Denied


@dataclasses.dataclass(frozen=True)
class Observed:
    """The answers of the API server. None: there is no such object."""

    own_version: str  # of this ddpjob
    kubernetes: str  # such as v1.34.0
    namespace: str  # of the jobs
    served: bool  # DDPJobs are served
    crd: Object | Denied | None
    deployments: Objects  # of operators
    operator_pods: Objects
    job_pods: Objects  # in the namespace
    nodes: Objects
    user_rights: Mapping[Right, bool]
    operator_rights: Mapping[Right, bool] | Denied | None = None
