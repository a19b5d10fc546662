"""The agent: first process of a worker pod; runs the user's command on the service's orders.

    service ──run M──► stop the command, start it with M's environment ──exit──► service
            ──halt───► stop the command
            ──finish─► stop the command, end the agent

In live mode the agent starts the command once and assigns each membership to its processes:

    service ──run M──► start the command unless it runs; its processes enter M
            ──stay───► start the command unless it runs; its processes wait in memory, or leave

`orders` decides what the agent does, `supervision` starts and stops the command.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import tempfile
import time
import uuid
from typing import TYPE_CHECKING

from ddpjob_agent.net.connectivity import ConnectivityCheck
from ddpjob_agent.net.framing import RejectedError
from ddpjob_agent.net.service_connection import ServiceConnection
from ddpjob_agent.worker.decisions import orders
from ddpjob_agent.worker.launch import Command
from ddpjob_agent.worker.supervision import Supervisor
from ddpjob_protocol.exit_codes import Exit
from ddpjob_protocol.messages.membership import Member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddpjob_agent.worker.settings import AgentSettings
    from ddpjob_protocol.keys.credentials import WorkerKeys
    from ddpjob_protocol.messages.agent import Message

log = logging.getLogger("ddpjob.agent")


class Agent:
    """The agent of one worker."""

    def __init__(
        self,
        settings: AgentSettings,
        keys: WorkerKeys,
        argv: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        incarnation = uuid.uuid4().hex
        me = Member(settings.worker, incarnation, settings.address, settings.processes)
        self._state = orders.AgentState(me)
        self._folder = tempfile.mkdtemp(prefix="ddpjob-")
        self._link = ServiceConnection(
            settings.host,
            settings.port,
            keys.own,
            self._hello,
            self._on_order,
            self._heartbeat,
        )
        self._connectivity = ConnectivityCheck(self._link.send)
        user = Command(argv, environment)
        self._supervisor = Supervisor(settings, keys, user, self._folder, self._state, self._link)

    async def run(self) -> int:
        """Run until the job ends or a signal arrives; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_sigterm)
        await self._supervisor.listen()
        await self._connectivity.listen(self._settings.address)
        tasks = [
            asyncio.ensure_future(self._register()),
            asyncio.ensure_future(self._watch_service_contact()),
            asyncio.ensure_future(self._supervisor.run()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await next(iter(done))
        except RejectedError as error:
            log.error("%s", error)  # noqa: TRY400 - users need no traceback
            return Exit.REJECTED
        finally:
            await self._supervisor.close()
            self._connectivity.close()
            for task in tasks:
                task.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._exit_code()

    async def _register(self) -> None:
        """Register after the fork server is ready: the other workers stop to admit this one."""
        await self._supervisor.wait_until_warm()
        await self._link.run()

    def _hello(self) -> Message:
        return {
            **orders.hello_message(self._state),
            **self._supervisor.hello_message(),
            "reach": self._connectivity.port,
            "clock": time.time(),
        }

    def _heartbeat(self) -> Message:
        return self._supervisor.heartbeat_message()

    def _on_order(self, order: Message) -> None:
        effects = self._supervisor.follow(order)
        if effects.check is not None:
            self._connectivity.check(effects.check, self._state.me, order.get("reach", {}))

    def _on_sigterm(self) -> None:
        log.info("received SIGTERM: leaving")
        self._state.left_at = time.monotonic()
        self._link.send({"type": "bye"})
        self._supervisor.on_sigterm()

    async def _watch_service_contact(self) -> None:
        limit = self._settings.orphan_seconds
        while True:
            await asyncio.sleep(min(1.0, limit / 4))
            silence = time.monotonic() - self._link.last_received
            if self._state.wanted is not None and silence > limit:
                log.warning("no rendezvous service for %.0f s: the processes are stopped", silence)
                orders.on_service_lost(self._state, uuid.uuid4().hex)
                self._link.reconnect()
                self._supervisor.wake()

    def _exit_code(self) -> int:
        finish = self._state.finish
        if finish is None:
            return Exit.STOPPED
        if finish["ok"]:
            return Exit.OK
        try:
            with open(self._settings.termination_log, "w", encoding="utf-8") as file:
                file.write(finish["reason"])
        except OSError as error:
            log.debug("no termination message: %s", error)
        return Exit.FAILED
