"""The operator's settings at its start; no other module reads its environment.

May not: depend on the use of the settings.
"""

from __future__ import annotations

import dataclasses
import os

from ddpjob_operator.manifests.network_policy import OperatorPods

ENV_LOG_LEVEL = "DDPJOB_LOG_LEVEL"
ENV_KEY_FILE = "DDPJOB_KEY_FILE"
ENV_AGENT_IMAGE = "DDPJOB_AGENT_IMAGE"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of `ddpjob operator run`."""

    agent_image: str  # holds the agent; used by init containers and rendezvous pods
    namespaces: tuple[str, ...] = ()  # empty: all
    key_file: str | None = None  # None: a key of this user, for an operator outside the cluster
    previous_key_files: tuple[str, ...] = ()  # of keys that pods may still have
    kubeconfig: str | None = None
    context: str | None = None
    health_port: int | None = None
    metrics_port: int | None = None
    web_port: int | None = None  # of the page about all jobs; None: no page
    web_hosts: tuple[str, ...] = ()  # names of that page, beside localhost and addresses
    lease: str = ""  # NAMESPACE/NAME of the Lease that elects a leader; empty: no election
    operator_pods: OperatorPods | None = None  # admitted by the policies of jobs; None: no policies
    requests: int = 8  # of one job at the same time
    workers: int = 8  # jobs reconciled at the same time


def log_level() -> str:
    """Return the level of log messages."""
    return os.environ.get(ENV_LOG_LEVEL, "INFO").upper()
