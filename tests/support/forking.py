"""One process for all local jobs of a session that has imported torch.

A run whose environment differs from this one's starts a process of its own, as it would for a user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER, inherited_environment
from ddpjob_protocol.environment import ENV_WARM_IMPORTS
from support.driving import environment
from support.forked import Forks, forking


def imports() -> dict[str, str]:
    """The environment in which torch is imported, and what many scripts import besides."""
    return {**inherited_environment(environment()), ENV_WARM_IMPORTS: "sklearn.datasets"}


@pytest.fixture(scope="session")
def job_forks() -> Iterator[Forks]:
    """Import torch in one process; all runs get its path."""
    with forking(imports()) as forks:
        os.environ[ENV_FORKSERVER] = str(forks.path)
        yield forks
        del os.environ[ENV_FORKSERVER]


@pytest.fixture(scope="session")
def fork_server(job_forks: Forks) -> Path:
    """Return its socket."""
    return job_forks.path
