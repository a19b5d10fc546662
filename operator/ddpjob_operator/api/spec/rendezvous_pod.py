"""The fields of a job for its rendezvous pod, which is small and needs no GPU.

May not: build the pod.
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import MaxLen
from pydantic import Field

from ddpjob_operator.api.base import Model
from ddpjob_operator.api.spec.pod.free_form import FreeForm
from ddpjob_operator.api.spec.resources import Quantities

MAX_LABELS = 32
MAX_LABEL = 253
MAX_TOLERATIONS = 32
LabelText = Annotated[str, Field(max_length=MAX_LABEL)]


class RendezvousResources(Model):
    """Requests and limits of the rendezvous pod, as in a pod."""

    limits: Quantities | None = Field(
        default=None, description="Maximum that it may use: 1 CPU and 256Mi of memory if omitted."
    )
    requests: Quantities | None = Field(
        default=None,
        description="Amount that its node must have free: 10m CPU and 64Mi of memory if omitted.",
    )


class RendezvousPod(Model):
    """Resources and nodes of the rendezvous pod."""

    resources: RendezvousResources = Field(
        default=RendezvousResources(),
        description="Requests and limits, for quotas and LimitRanges.",
    )
    node_selector: Annotated[dict[str, LabelText], MaxLen(MAX_LABELS)] = Field(
        default={}, description="Labels that its node must have."
    )
    tolerations: Annotated[tuple[FreeForm, ...], MaxLen(MAX_TOLERATIONS)] = Field(
        default=(), description="Tolerations, beside those of the workers."
    )
