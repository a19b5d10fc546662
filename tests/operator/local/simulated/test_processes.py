"""Signals to children of the event loop."""

from __future__ import annotations

import os
import signal
import subprocess

from ddpjob_operator.local.simulated.processes import send_signal


def test_a_signal_to_a_child_that_has_ended_does_not_reap_it() -> None:
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    send_signal(child, signal.SIGTERM)
    pid, status = os.waitpid(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert (pid, child.returncode) == (child.pid, 3)
    send_signal(child, signal.SIGTERM)
