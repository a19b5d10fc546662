"""The agent takes its keys; the processes that it starts find them nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddpjob_agent.worker.key_file import read_job_key, take_worker_keys
from ddpjob_agent.worker.settings import UsageError
from support.keys import KEY, service_file, worker_file

NOBODY = 65534

# As the agent does. The programs that it executes look where the keys could be.
AGENT = """
import json, os, subprocess, sys
from ddpjob_agent.worker.key_file import close_memory, take_worker_keys
path, user = sys.argv[1:]
if os.getuid() == 0:  # root reads everything
    os.setgid(int(user))
    os.setuid(int(user))
close_memory()
keys = take_worker_keys(path)
me = f"/proc/{os.getpid()}"
looks = [["cat", each] for each in (path, f"{me}/environ", f"{me}/maps", "/proc/self/environ")]
print(json.dumps([subprocess.call(look, stdout=-3, stderr=-3) for look in looks]))
"""


def test_a_process_of_the_user_finds_no_key() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = worker_file(Path(folder), "a")
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        command = [sys.executable, "-c", AGENT, path, str(NOBODY)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
    assert json.loads(done.stdout) == [1, 1, 1, 0], "a debugger works on a process of the user"


def test_an_agent_takes_its_keys_once(tmp_path: Path) -> None:
    path = worker_file(tmp_path, "a")
    assert take_worker_keys(path) == KEY.worker_keys("a")
    with pytest.raises(UsageError, match="has no keys"):
        take_worker_keys(path)


def test_a_service_reads_its_key_at_each_start(tmp_path: Path) -> None:
    path = service_file(tmp_path)
    for _ in range(2):
        assert read_job_key(path).to_text() == KEY.to_text()
    with pytest.raises(UsageError, match="the operator writes this file"):
        read_job_key(worker_file(tmp_path, "a"))
