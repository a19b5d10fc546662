"""The rendezvous service of one job: sockets and timers around the pure `registry`.

Agents and the operator use one port; the first bytes distinguish them. Decides nothing: every
decision is made in `membership`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.net.framing import (
    HANDSHAKE_SECONDS,
    MAGIC,
    Connection,
    FramingError,
    WrongTokenError,
    accept,
)
from ddpjob_agent.net.listening import Listener, bind
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.orders import order_for
from ddpjob_agent.registry.registration import (
    extend_deadlines,
    on_disconnect,
    on_expectation,
    on_heartbeat,
    on_hello,
)
from ddpjob_agent.registry.report import build_report
from ddpjob_agent.service.c10d_stores import MembershipStores
from ddpjob_agent.service.http_api import METHODS, OperatorApi
from ddpjob_protocol.codec import DecodeError
from ddpjob_protocol.control import Expectation, Report
from ddpjob_protocol.messages import PROTOCOL, Message
from ddpjob_protocol.report_check import check_member, check_message

if TYPE_CHECKING:
    from ddpjob_agent.registry.state import RegistryState
    from ddpjob_protocol.membership import Member

TICK_SECONDS = 0.5
STALL_SECONDS = 1.0  # seconds; if a tick is later than this, the service itself was stalled

log = logging.getLogger("ddpjob.rendezvous")


class _Session:
    """A connected agent."""

    def __init__(self, connection: Connection, member: Member) -> None:
        self.connection = connection
        self.member = member
        self.worker = member.worker
        self.order: Message | None = None
        self.requests: dict[int, asyncio.Task[None]] = {}


class RendezvousServer:
    """The server of one job; it runs until it is cancelled."""

    def __init__(self, state: RegistryState, token: str) -> None:
        self._state = state
        self._token = token
        self._controller = OperatorApi(token, self._report_after, self._on_expectation)
        self._sessions: dict[str, _Session] = {}
        self._store = MembershipStores(state)
        self._report = build_report(state, version=1)
        self._news_version = 1  # version of the last report that changed more than progress
        self._reported = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = time.monotonic()

    async def run(self, host: str, port: int) -> None:
        """Listen and serve; raise OSError if the port is in use."""
        listener = Listener(bind(host, port), self._connected)
        log.info("listening on %s", listener.address)
        with contextlib.closing(listener):
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self._reevaluate()

    # --- connections ----------------------------------------------------------------------------

    async def _connected(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        authenticated: Callable[[], None],
    ) -> None:
        try:
            first = await reader.readexactly(len(MAGIC))
            if first == MAGIC:
                connection = await accept(reader, writer, self._token)
                authenticated()
                await self._serve_agent(connection)
            elif first in METHODS:
                await self._controller.serve(first, reader, writer, authenticated)
        except (FramingError, WrongTokenError) as error:
            log.warning("refused %s: %s", writer.get_extra_info("peername"), error)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            log.debug("connection ended: %r", error)
        except asyncio.CancelledError:
            log.debug("the service ends")
        finally:
            writer.close()

    async def _serve_agent(self, connection: Connection) -> None:
        hello = await asyncio.wait_for(connection.receive(), HANDSHAKE_SECONDS)
        if hello is None:
            return
        try:
            session = self._register(connection, hello)
        except (KeyError, TypeError, ValueError) as error:
            raise FramingError(f"a hello that cannot be read: {error!r}") from error
        try:
            self._reevaluate()
            while True:
                message = await connection.receive()
                if message is None:
                    break
                self._handle(session, message)
                await connection.drain()
        finally:
            self._unregister(session)

    def _register(self, connection: Connection, hello: Message) -> _Session:
        if hello["type"] != "hello" or hello["protocol"] != PROTOCOL:
            reason = f"protocol {PROTOCOL} is spoken here, not {hello.get('protocol')}"
            connection.send({"type": "refused", "reason": reason})
            raise FramingError(reason)
        worker = on_hello(self._state, hello, time.monotonic())
        session = _Session(connection, check_member(hello["member"]))
        older = self._sessions.pop(worker, None)
        if older is not None:
            self._drop(older)
        self._sessions[worker] = session
        self._store.sync_membership()
        self._restore_entries(worker, hello)
        log.info("%s registered", worker)
        return session

    def _restore_entries(self, worker: str, hello: Message) -> None:
        held = hello.get("membership")
        if not self._state.is_member(worker) or not isinstance(held, dict):
            return
        try:
            self._store.restore(worker, held["id"], hello["entries"])
        except (KeyError, TypeError, ValueError) as error:
            self._state.refuse(worker, "hello.entries", repr(error), time.monotonic())

    def _unregister(self, session: _Session) -> None:
        self._drop(session)
        if self._sessions.get(session.worker) is session:
            del self._sessions[session.worker]
            on_disconnect(self._state, session.worker, time.monotonic())
            self._reevaluate()

    @staticmethod
    def _drop(session: _Session) -> None:
        session.connection.close()
        for task in session.requests.values():
            task.cancel()

    def _handle(self, session: _Session, message: Message) -> None:
        now, kind = time.monotonic(), message["type"]
        on_heartbeat(self._state, session.worker, now)
        if kind in ("store", "cancel"):
            self._on_store_message(session, message, now)
        else:
            on_message(self._state, session.worker, message, now)
            if kind == "beat":
                session.connection.send({"type": "beat"})
            self._reevaluate()

    # --- store ----------------------------------------------------------------------------------

    def _on_store_message(self, session: _Session, message: Message, now: float) -> None:
        try:
            check_message(message)
        except DecodeError as error:
            self._state.refuse(session.worker, message["type"], str(error), now)
            return
        if message["type"] == "store":
            self._start_request(session, message)
        elif message["id"] in session.requests:
            session.requests[message["id"]].cancel()

    def _start_request(self, session: _Session, message: Message) -> None:
        task = asyncio.ensure_future(self._serve_request(session, message))
        session.requests[message["id"]] = task
        task.add_done_callback(lambda _: session.requests.pop(message["id"], None))

    async def _serve_request(self, session: _Session, message: Message) -> None:
        session.connection.send(await self._store.answer(session.member, message))

    # --- decisions and reports --------------------------------------------------------------------

    def _reevaluate(self) -> None:
        """Decide, then update the report and every agent's order."""
        now = time.monotonic()
        stall = now - self._last_tick - TICK_SECONDS
        self._last_tick = now
        if stall > STALL_SECONDS:
            log.warning(
                "the event loop stalled for %.1f s; heartbeat deadlines are extended by that", stall
            )
            extend_deadlines(self._state, stall)
        again_at = decide(self._state, now)
        for line in self._state.refusals.take():
            log.warning("%s", line)
        self._store.sync_membership()
        for session in list(self._sessions.values()):
            if not self._state.knows(session.worker):
                session.connection.close()
                continue
            order = order_for(self._state, session.worker, now)
            if order != session.order:
                session.connection.send(order)
                session.order = order
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if again_at is not None:
            delay = max(0.0, again_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._reevaluate)
        self._publish()

    def _publish(self) -> None:
        report = build_report(self._state, self._report.version)
        if report == self._report:
            return
        if report.reason != self._report.reason:
            log.info("%s: %s", report.state, report.reason)
        version = report.version + 1
        if report.without_progress() != self._report.without_progress():
            self._news_version = version
        self._report = dataclasses.replace(report, version=version)
        task = asyncio.ensure_future(self._wake_polls())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake_polls(self) -> None:
        async with self._reported:
            self._reported.notify_all()

    async def _report_after(self, version: int, seconds: float, only_news: bool) -> Report:
        """Return the report once it is newer than `version`, at the latest after `seconds`."""

        def differs() -> bool:
            if only_news and version <= self._report.version:
                return self._news_version > version
            return self._report.version != version

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(differs), seconds)
        return self._report

    async def _until(self, differs: Callable[[], bool]) -> None:
        async with self._reported:
            await self._reported.wait_for(differs)

    def _on_expectation(self, expectation: Expectation) -> None:
        on_expectation(self._state, expectation, time.monotonic())
        self._reevaluate()
