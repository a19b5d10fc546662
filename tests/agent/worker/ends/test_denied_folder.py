"""The remedy for a process that may not write to the volume of the snapshots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpjob_agent.worker.ends.denied_folder import explain_denied
from ddpjob_protocol.messages.agent import Failure
from support.command import without_capabilities
from support.driving import environment

DENIED = "rank 0: PermissionError: [Errno 13] Permission denied: '{}'"
RUST = 'rank 0: SafetensorError: I/O error: Permission denied (os error 13) at path "{}"'
TORCH = (
    "rank 0: RuntimeError: [enforce fail at inline_container.cc:746] . open file failed with "
    "strerror: Permission denied"
)


def explained(summary: str, snapshots: Path) -> str:
    return explain_denied(Failure(0.0, summary), str(snapshots), str(Path.cwd())).summary


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
        pytest.param(TORCH, id="folder_is_writable"),
    ],
)
def test_other_failures_stay(tmp_path: Path, summary: str) -> None:
    assert explained(summary, tmp_path / "digits") == summary
    assert explain_denied(Failure(0.0, summary), "", str(Path.cwd())).summary == summary


# Prints the explanation of each failure, and whether it is permanent.
PROGRAM = """
import json, sys
from ddpjob_agent.worker.ends.denied_folder import explain_denied
from ddpjob_protocol.messages.agent import Failure

summaries, snapshots, working = json.loads(sys.argv[1])
found = [explain_denied(Failure(0.0, each), snapshots, working) for each in summaries]
print(json.dumps([(each.summary, each.permanent) for each in found]))
"""


def explained_to_a_user(snapshots: Path, working: Path, *summaries: str) -> list[tuple[str, bool]]:
    """Explain these failures in a process that permissions apply to."""
    arguments = json.dumps([summaries, str(snapshots), str(working)])
    command = [*without_capabilities(), sys.executable, "-c", PROGRAM, arguments]
    output = subprocess.run(command, env=environment(), check=True, capture_output=True).stdout
    return [(summary, permanent) for summary, permanent in json.loads(output)]


def test_a_folder_that_cannot_be_written_to_is_permanent(tmp_path: Path) -> None:
    volume, working = tmp_path / "volume", tmp_path / "working"
    for folder in (volume, working):
        folder.mkdir(mode=0o555)
    snapshots = volume / "digits"
    named = [DENIED.format(snapshots), RUST.format(snapshots / ".tmp"), DENIED.format("x.pt")]
    *found, other = explained_to_a_user(snapshots, volume, *named, TORCH, "ValueError: bad")
    for summary, permanent in found:
        assert f"; {volume} belongs to user {os.getuid()}, group " in summary
        assert summary.endswith("or change the owner if the volume ignores it")
        assert permanent
    assert other == ("ValueError: bad", False)
    volume.chmod(0o755)
    [(summary, permanent)] = explained_to_a_user(snapshots, working, TORCH)
    assert f"; {working} belongs to user {os.getuid()}, group " in summary
    assert "; save below $DDPJOB_SNAPSHOT_DIR" in summary
    assert not permanent
