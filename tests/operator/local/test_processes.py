"""Signals to children of the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from ddpjob_operator.local.processes import send_signal


def test_a_signal_to_a_child_that_has_ended_leaves_its_exit_code_to_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> int:
        child = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not reap
        send_signal(child, signal.SIGTERM)
        return await child.wait()

    with caplog.at_level(logging.WARNING, "asyncio"):
        assert asyncio.run(body()) == 3
    assert not caplog.records
