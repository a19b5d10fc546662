"""One process for all tests of a session that has imported torch, for runs of simulated nodes.

A run whose environment differs from this one's starts a process of its own, as it would for a user.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpjob_agent.warm.standby import start_parent, until_ready
from ddpjob_operator.local.backend import ENV_FORKSERVER, inherited_environment
from driving import environment


def imports() -> dict[str, str]:
    """The environment in which torch is imported."""
    return inherited_environment(environment())


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Path]:
    """The socket of a process that has imported torch; it is told to all runs."""
    python = str(Path(imports()["PATH"].split(os.pathsep)[0]) / "python")
    with tempfile.TemporaryDirectory(prefix="ddpjob-fork-") as folder:
        path = Path(folder) / "socket"
        process, connection = start_parent(python, imports(), str(path))
        try:
            asyncio.run(until_ready(connection))
            os.environ[ENV_FORKSERVER] = str(path)
            yield path
        finally:
            os.environ.pop(ENV_FORKSERVER, None)
            connection.close()
            process.wait()
