"""The remedy for a process that may not write to the volume of the snapshots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpjob_agent.worker.denied_folder import explain_denied
from ddpjob_protocol.messages import Failure

DENIED = "rank 0: PermissionError: [Errno 13] Permission denied: '{}'"


def explained(summary: str, snapshots: Path) -> str:
    return explain_denied(Failure(at=0.0, summary=summary), str(snapshots)).summary


@pytest.mark.parametrize("denied", ["", "digits", "digits/step-1/model.bin"])
def test_owner_and_remedy_are_reported(tmp_path: Path, denied: str) -> None:
    summary = DENIED.format(tmp_path / denied)
    tmp_path.chmod(0o755)
    found = explained(summary, tmp_path / "digits")
    assert found.startswith(f"{summary}; {tmp_path} belongs to user {os.getuid()}, group ")
    assert f"mode 755, but the process is user {os.getuid()}, groups " in found
    assert "set template.spec.securityContext.fsGroup" in found


@pytest.mark.parametrize(
    "summary",
    [
        pytest.param("rank 0: ValueError: bad", id="another_error"),
        pytest.param(DENIED.format("/etc/shadow"), id="another_folder"),
        pytest.param(DENIED.format("model.pt"), id="relative"),
    ],
)
def test_other_failures_stay(tmp_path: Path, summary: str) -> None:
    assert explained(summary, tmp_path / "digits") == summary
    assert explain_denied(Failure(at=0.0, summary=summary), "").summary == summary
