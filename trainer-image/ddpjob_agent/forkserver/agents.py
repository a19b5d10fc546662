"""The fork server of a run with simulated nodes: one process imports torch and starts all agents.

Each agent gets a fork of that process as its own fork server, so all nodes together import torch
once. If an agent cannot start in this way, its caller executes the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

from ddpjob_agent.forkserver import channel
from ddpjob_agent.forkserver.client import request_fork, start_server, wait_until_ready
from ddpjob_agent.forkserver.eligibility import NotEligibleError, check_environment, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_agent.forkserver.channel import ForkRequest


log = logging.getLogger("ddpjob.warm")


class AgentForkServer:
    """A fork server that starts agents, each with a fork server of its own."""

    def __init__(self, log: str, path: str = "") -> None:
        """`log` is a file for the output of the fork server.

        `path` is the socket of a fork server that runs already; if it is empty, start one.
        """
        self._log = log
        self._path = path
        self._begun = False
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._greeting: asyncio.Task[str] | None = None

    def _begin(self, argv: Sequence[str], imports: Mapping[str, str]) -> None:
        self._begun = True
        try:
            if self._path:
                self._channel = socket.socket(socket.AF_UNIX)
                self._channel.connect(self._path)
            else:
                python, _ = interpreter_of(argv, imports)
                with open(self._log, "ab") as output:
                    self.process, self._channel = start_server(
                        python, imports, output=output.fileno()
                    )
            self._greeting = asyncio.ensure_future(wait_until_ready(self._channel))
        except (NotEligibleError, OSError) as error:
            self.close()
            log.info("no fork server: %s", error)

    async def start(
        self, request: ForkRequest, output: int, argv: Sequence[str], imports: Mapping[str, str]
    ) -> ForkedAgent | None:
        """Start an agent; return None if the caller must execute the agent.

        The agent will run `argv`, with torch imported in the environment `imports`. The first
        call starts the fork server, for commands with the interpreter of `argv`.
        """
        if not self._begun:
            self._begin(argv, imports)
        if self._greeting is None:
            return None
        try:
            python, environment = json.loads(await self._greeting)
            if interpreter_of(argv, imports)[0] != python:
                raise NotEligibleError(f"torch is imported by {python}")
            check_environment(environment, imports)
            assert self._channel is not None
            return ForkedAgent(*await request_fork(self._channel, request, output, output))
        except NotEligibleError as error:
            log.info("%s has a warm parent of its own: %s", argv, error)
        except OSError as error:
            log.warning("no fork server: %s", error)
        return None

    def disable(self) -> None:
        """Close the fork server if it has not imported torch yet."""
        if self._greeting is not None and not self._greeting.done():
            self.close()

    def close(self) -> None:
        """End the fork server; the agents that still run get SIGTERM."""
        if self._greeting is not None:
            self._greeting.cancel()
            self._greeting = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class ForkedAgent:
    """An agent that a fork server started, with the used part of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line
        channel.send_event(line, channel.PID, pid)  # lets the agent run
        self._ended = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        loop, event = asyncio.get_running_loop(), {}
        with contextlib.suppress(OSError):
            event = channel.parse_event(await loop.sock_recv(self._line, channel.LINE_BYTES))
        self._line.close()
        if channel.EXIT not in event:  # the server ended first and sends no exit code
            await wait_until_gone(self.pid)
        self.returncode = event.get(channel.EXIT, -signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for the end of the agent; return the exit code."""
        await asyncio.shield(self._ended)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM, unless the agent has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the agent has ended."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not a child of this process."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
