"""The end of the processes below an agent, if the agent may not end one of them."""

from __future__ import annotations

import json
import subprocess
import sys

STOP = """
import asyncio, json, logging, os, signal, subprocess, sys
from ddpjob_agent.forkserver.client import ForkServerClient
from ddpjob_agent.output.capture import OutputCapture
from ddpjob_agent.worker.processes import process_tree

logging.basicConfig(stream=sys.stderr, format="%(message)s")
kill = os.kill

def refuse(pid, number):
    '''As the kernel does if the process belongs to another user.'''
    if pid == other.pid:
        raise PermissionError
    kill(pid, number)

async def main():
    global other
    processes = process_tree.ProcessTree(lambda _: None, ForkServerClient(), OutputCapture())
    await processes.start(["sleep", "300"], os.environ)
    other = subprocess.Popen(["sleep", "300"])
    process_tree.os.kill = refuse
    for _ in range(2):
        await processes.stop(grace=0.01)
    alone = process_tree.descendants(os.getpid()) == [other.pid]
    await processes.start(["sleep", "300"], os.environ)
    processes._command = other.pid
    processes.signal(signal.SIGTERM)
    processes.signal(0)
    await processes.stop(grace=0)
    kill(other.pid, signal.SIGKILL)
    print(json.dumps([alone, other.pid]))

try:
    asyncio.run(main())
finally:
    for pid in process_tree.descendants(os.getpid()):
        kill(pid, signal.SIGKILL)
"""


def test_process_of_another_user_is_left_and_reported_once_for_each_stop() -> None:
    """A program with setuid runs as root; an agent without root may not end it."""
    done = subprocess.run(
        [sys.executable, "-c", STOP], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    alone, pid = json.loads(done.stdout)
    assert alone
    warnings = [line for line in done.stderr.splitlines() if "another user" in line]
    assert len(warnings) == 3
    assert f"process {pid} belongs to another user" in warnings[0]
    assert "without setuid" in warnings[0]
