"""Keys of the jobs in tests, and the files in which processes get them."""

from __future__ import annotations

from pathlib import Path

from ddpjob_protocol.keys.credentials import Credential, JobKey
from ddpjob_protocol.keys.membership_seal import MembershipSeal

OPERATOR_KEY = b"the operator's key in tests, 32 or more bytes"
ANOTHER_OPERATOR_KEY = b"another key of the operator of 32 bytes or more"
KEY = JobKey.of(OPERATOR_KEY, "the job of a test")
ANOTHER_KEY = JobKey.of(OPERATOR_KEY, "another job of a test")
SEAL = MembershipSeal(KEY.memberships)
PEERS = KEY.worker_keys("w").peers


def credential(name: str, key: JobKey = KEY) -> Credential:
    """Return the credential of a worker."""
    return key.worker_keys(name).own


def service_file(folder: Path, key: JobKey = KEY) -> str:
    """Write the file of a service to a folder; return its path."""
    return _file(folder / "service.keys", key.to_text())


def worker_file(folder: Path, name: str, key: JobKey = KEY) -> str:
    """Write the file of a worker, which its agent removes, to a folder; return its path."""
    return _file(folder / f"{name}.keys", key.worker_keys(name).to_text())


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
