"""The agent reads its settings from variables, and names a variable that is wrong."""

from __future__ import annotations

import pytest

from ddpjob_agent.worker.settings import UsageError, read_settings
from ddpjob_protocol.environment import Launcher

COMPLETE = {
    "DDPJOB_WORKER": "digits-worker-000-1", "DDPJOB_PROCESSES": "2",
    "DDPJOB_SERVICE": "[fd00::1]:29400", "DDPJOB_KEYS": "/keys", "DDPJOB_ADDRESS": "fd00::2",
}  # fmt: skip


def test_defaults() -> None:
    found = read_settings(COMPLETE)
    assert (found.host, found.port, found.processes) == ("fd00::1", 29400, 2)
    assert (found.orphan_seconds, found.stuck_seconds, found.grace_seconds) == (60, 10, 45)
    assert (found.launcher, found.files) == (Launcher.TORCHRUN, ())
    assert found.fork_server_enabled
    assert found.fork_server is None


def test_given_values() -> None:
    given = {
        "DDPJOB_LAUNCHER": "mpi", "DDPJOB_SNAPSHOT_FILES": '["a.pt", "logs/"]',
        "DDPJOB_WARM_START": "0", "DDPJOB_WARM_PARENT": "7 4711", "DDPJOB_GRACE_SECONDS": "2.5",
    }  # fmt: skip
    found = read_settings({**COMPLETE, **given})
    assert (found.launcher, found.files) == (Launcher.MPI, ("a.pt", "logs/"))
    assert (found.fork_server_enabled, found.fork_server) == (False, (7, 4711))
    assert found.grace_seconds == 2.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORKER", "", "DDPJOB_WORKER is not set; the operator sets it"),
        ("PROCESSES", "0", "DDPJOB_PROCESSES must be at least 1, not 0"),
        ("PROCESSES", "two", "DDPJOB_PROCESSES must hold a number, not 'two'"),
        ("SERVICE", "host", "DDPJOB_SERVICE: 'host' is not host:port"),
        ("LAUNCHER", "srun", "DDPJOB_LAUNCHER must be torchrun or python or mpi, not 'srun'"),
        ("ORPHAN_SECONDS", "soon", "DDPJOB_ORPHAN_SECONDS must hold seconds, not 'soon'"),
        ("SNAPSHOT_FILES", "{}", "DDPJOB_SNAPSHOT_FILES must hold a JSON list of texts"),
        ("SNAPSHOT_FILES", "[1", "DDPJOB_SNAPSHOT_FILES must hold a JSON list of texts"),
    ],
)
def test_wrong_value(name: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings({**COMPLETE, f"DDPJOB_{name}": value})
