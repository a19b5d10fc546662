"""The rendezvous service of one job: sockets and timers around the pure `registry`.

Agents and the operator use one port; the first bytes distinguish them. Decides nothing: every
decision is made in `membership`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from typing import TYPE_CHECKING

from ddpjob_agent.net.framing import (
    HANDSHAKE_SECONDS,
    MAGIC,
    Connection,
    FramingError,
    WrongKeyError,
    accept,
)
from ddpjob_agent.net.sockets.listening import Listener, bind
from ddpjob_agent.registry.decisions import decide
from ddpjob_agent.registry.effects import Effect
from ddpjob_agent.registry.held_membership import without_forged
from ddpjob_agent.registry.messages import on_message
from ddpjob_agent.registry.orders import Orders
from ddpjob_agent.registry.refusals import refusal_of
from ddpjob_agent.registry.registration import (
    SupersededError,
    extend_deadlines,
    on_disconnect,
    on_expectation,
    on_heartbeat,
    on_hello,
    on_look,
    on_silent_hosts,
)
from ddpjob_agent.service import frame_limits
from ddpjob_agent.service.agent_session import ASK, AgentSession
from ddpjob_agent.service.c10d_session import STORE_MESSAGES
from ddpjob_agent.service.c10d_stores import MembershipStores
from ddpjob_agent.service.host_watch import HostTimer, HostWatch
from ddpjob_agent.service.http_api import METHODS, OperatorApi
from ddpjob_agent.service.report_board import ReportBoard
from ddpjob_agent.service.turns import Turns
from ddpjob_protocol.codec import DecodeError
from ddpjob_protocol.keys.membership_seal import MembershipSeal
from ddpjob_protocol.messages.agent import Message
from ddpjob_protocol.messages.warnings import rendezvous_fails
from ddpjob_protocol.parsers.report_check import check_member, check_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddpjob_agent.c10d.budget import Limits
    from ddpjob_agent.registry.state.registry_state import RegistryState
    from ddpjob_protocol.keys.credentials import JobKey
    from ddpjob_protocol.messages.control import Expectation

STALL_SECONDS = 1.0  # if a turn is later than this, the service itself was stalled
BEAT = b'{"type":"beat"}'
PROBE = b'{"type":"probe"}'
DEPARTING = b'{"type":"departing"}'

log = logging.getLogger("ddpjob.rendezvous")


class RendezvousServer:
    """The server of one job; it runs until it departs, or is cancelled."""

    def __init__(self, state: RegistryState, key: JobKey, limits: Limits | None = None) -> None:
        self._state = state
        self._key = key
        self._board = ReportBoard(state)
        self._controller = OperatorApi(key.operator, self._board.report_after, self._on_expectation)
        self._sessions: dict[str, AgentSession] = {}
        self._registering: dict[str, Connection] = {}  # by worker; their hello has not arrived
        self._seal = MembershipSeal(key.memberships)
        self._orders = Orders(state, self._seal)
        self._turns = Turns(self)
        report = functools.partial(self._turns.on_effect, Effect.REPORT)
        self._store = MembershipStores(state, limits, report)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listener: Listener | None = None
        self._departs = False
        self._hosts = HostWatch()

    async def run(self, host: str, port: int) -> None:
        """Listen and serve; raise OSError if the port is in use, or SupersededError."""
        self._listener = listener = Listener(bind(host, port), self._connected)
        log.info("listening on %s", listener.address)
        hosts = HostTimer(self._check_hosts)
        with (
            contextlib.closing(listener),
            contextlib.closing(self._turns),
            contextlib.closing(hosts),
        ):
            self._turns.start()
            hosts.start()
            await self._ended

    def depart(self) -> None:
        """End once no agent is left, or one has found the next service; accept no connection.

        If the job is deleted, all of its pods end in any order, and no other service comes. The agents
        need this one to agree on their last step.
        """
        self._departs = True
        if self._listener is not None:
            self._listener.close()
        for session in self._sessions.values():
            session.connection.send_json(DEPARTING)
        self._end_if(not self._sessions)

    def _end_if(self, condition: bool) -> None:
        if self._departs and condition and not self._ended.done():
            self._ended.set_result(None)

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
                connection = await accept(reader, writer, self._key.worker)
                authenticated()
                await self._serve_agent(connection)
            elif first in METHODS:
                await self._controller.serve(first, reader, writer, authenticated)
        except (FramingError, WrongKeyError) as error:
            log.warning("refused %s: %s", writer.get_extra_info("peername"), error)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            log.debug("connection ended: %r", error)
        except asyncio.CancelledError:
            log.debug("the service ends")
        finally:
            writer.close()

    async def _serve_agent(self, connection: Connection) -> None:
        hello = await self._first_message(connection)
        if hello is None or self._departs:
            return
        try:
            session = self._register(connection, hello)
        except SupersededError as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            return
        except Exception as error:
            raise FramingError(f"a hello that cannot be read: {error!r}") from error
        try:
            self._turns.on_effect(Effect.TURN)
            limit = functools.partial(self._limit, session.worker)
            while (message := await connection.receive(limit)) is not None:
                self._handle(session, message)
                await connection.drain()
        finally:
            self._unregister(session)

    async def _first_message(self, connection: Connection) -> Message | None:
        """Return the hello; of two connections of one worker, only the newer may send one."""
        older = self._registering.pop(connection.peer, None)
        if older is not None:
            older.close()
        self._registering[connection.peer] = connection
        try:
            receiving = connection.receive(frame_limits.hello)
            return await asyncio.wait_for(receiving, HANDSHAKE_SECONDS)
        finally:
            if self._registering.get(connection.peer) is connection:
                del self._registering[connection.peer]

    def _limit(self, worker: str) -> int:
        return frame_limits.message(is_member=self._state.is_member(worker))

    def _register(self, connection: Connection, hello: Message) -> AgentSession:
        hello, problem = without_forged(hello, self._seal, self._state.current)
        if reason := refusal_of(hello, connection.peer, self._state):
            connection.send({"type": "refused", "reason": reason})
            raise FramingError(reason)
        if check_member(hello["member"]).worker != connection.peer:
            raise FramingError(f"{connection.peer} registers as another worker")
        now = time.monotonic()
        worker = on_hello(self._state, hello, now)
        if problem:
            self._state.refuse(worker, "hello.membership", problem, now)
        session = AgentSession(connection, check_member(hello["member"]))
        older = self._sessions.pop(worker, None)
        if older is not None:
            older.close()
        self._sessions[worker] = session
        self._store.sync_membership()
        log.info("%s registered", worker)
        return session

    def _unregister(self, session: AgentSession) -> None:
        session.close()
        if self._sessions.get(session.worker) is session:
            del self._sessions[session.worker]
            on_disconnect(self._state, session.worker, time.monotonic())
            self._turns.on_effect(Effect.TURN)
            self._end_if(not self._sessions)

    def _handle(self, session: AgentSession, message: Message) -> None:
        try:
            self._turns.on_effect(self._record(session, message))
        except Exception as error:
            raise FramingError(f"{session.worker} sent what cannot be read: {error!r}") from error

    def _record(self, session: AgentSession, message: Message) -> Effect:
        now, kind = time.monotonic(), message["type"]
        effect = on_heartbeat(self._state, session.worker, now)
        if kind in STORE_MESSAGES:
            self._on_store_message(session, message, now)
        elif kind == "moves":
            self._end_if(True)
        else:
            if kind == "beat":
                session.store.on_beat(self._store, message)
                session.connection.send_json(BEAT)
            effect = max(effect, on_message(self._state, session.worker, message, now))
        return effect

    def _on_store_message(self, session: AgentSession, message: Message, now: float) -> None:
        try:
            session.store.on_message(self._store, check_message(message))
        except DecodeError as error:
            self._state.refuse(session.worker, message["type"], str(error), now)

    # --- turns ----------------------------------------------------------------------------------

    def take(self, now: float, late: float) -> float | None:
        """Decide, and send the orders that differ from the last ones; return the next deadline."""
        if late > STALL_SECONDS:
            log.warning(
                "the event loop stalled for %.1f s; heartbeat deadlines are extended by that", late
            )
            extend_deadlines(self._state, late)
        again_at = decide(self._state, now)
        for line in self._state.refused_reports.take():
            log.warning("%s", line)
        self._store.sync_membership()
        self._orders.update(now)
        for session in list(self._sessions.values()):
            if self._state.knows(session.worker):
                session.give(self._orders.order_for(session.worker))
                session.store.ask_for_writes(self._store)
            else:
                session.connection.close()
            if session.worker in self._state.awaited:
                session.ask(self._state.awaited_since, now)
        self._warn("", now)
        return again_at

    def _check_hosts(self, now: float) -> int:
        infos = {name: each.connection.tcp_info() for name, each in self._sessions.items()}
        known = {name: info for name, info in infos.items() if info is not None}
        silent = self._hosts.check(known, now, self._probe)
        effect, unheard = on_look(self._state, now)
        self._turns.on_effect(max(effect, on_silent_hosts(self._state, silent)))
        for worker in self._sessions.keys() & unheard:
            self._sessions[worker].connection.send_json(ASK)
        return len(infos)

    def _probe(self, worker: str) -> None:
        self._sessions[worker].connection.send_json(PROBE)

    def publish(self) -> None:
        """Publish the report."""
        self._board.publish()

    def on_failure(self, error: str, now: float) -> None:
        """Report that turns fail, with the last report that could be built."""
        self._warn(error, now)
        self._board.publish_warnings()

    def _warn(self, error: str, now: float) -> None:
        self._state.warnings.add("", rendezvous_fails(error), self._state.wall(now))

    def _on_expectation(self, expectation: Expectation) -> None:
        self._turns.on_effect(on_expectation(self._state, expectation, time.monotonic()))
