"""The rendezvous service of one job: sockets and timers around `registry`, and the c10d store.

Agents and the operator use one port; the first bytes tell them apart. The store of a membership
is thrown away with it, so that no process ever reads a key of an older one. Decides nothing:
every decision is made in `membership`.

torchrun's first agent to join would look again only after a second. So whoever joins is answered
when all members have, with the state as it is then; torchrun takes that for a lost race, finds
itself in it, and goes on at once (docs/adr/0013).
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from .c10d_protocol import Op, ProtocolError, Request
from .c10d_server import StoreBackend
from .c10d_store import Entry, Store
from .contract import PROTOCOL, Expectation, Message, Report
from .controller_http import METHODS, Controller
from .wire import HANDSHAKE_SECONDS, MAGIC, Connection, WireError, WrongTokenError, accept

if TYPE_CHECKING:
    from .registry import Registry

TICK_SECONDS = 0.5
STALL_SECONDS = 1.0  # a tick that is later by more than this: the service itself stood still
REMEMBERED_WRITES = 256  # per agent: what it may send again after its connection broke

TORCHRUN_KEY = b"/torch.rendezvous."  # under which torchrun's agents meet
GATHER_SECONDS = 10.0

log = logging.getLogger("ddpjob.rendezvous")

Replies = dict[str, "collections.OrderedDict[int, Message]"]


class _Session:
    """One connected agent."""

    def __init__(self, connection: Connection, worker: str, incarnation: str) -> None:
        self.connection = connection
        self.worker = worker
        self.incarnation = incarnation
        self.order: Message | None = None
        self.requests: dict[int, asyncio.Task[None]] = {}


class RendezvousServer:
    """Serves one job until it is cancelled."""

    def __init__(self, registry: Registry, token: str) -> None:
        self._registry = registry
        self._token = token
        self._controller = Controller(token, self._report_after, self._expect)
        self._sessions: dict[str, _Session] = {}
        self._store = StoreBackend(Store())
        self._store_of = ""
        self._store_ready = asyncio.Event()
        self._arrived: set[str] = set()  # members whose torchrun has come to the rendezvous
        self._gathered = asyncio.Event()
        self._replies: Replies = {}
        self._version = 1
        self._report = registry.report(1)
        self._reported = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = time.monotonic()

    async def run(self, host: str, port: int) -> None:
        """Listen and serve; raises OSError when the port is taken."""
        server = await asyncio.start_server(self._connected, host, port)
        log.info("listening on %s", server.sockets[0].getsockname())
        async with server:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                self._turn()

    # --- connections ----------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await asyncio.wait_for(reader.readexactly(len(MAGIC)), HANDSHAKE_SECONDS)
            if first == MAGIC:
                connection = await asyncio.wait_for(
                    accept(reader, writer, self._token), HANDSHAKE_SECONDS
                )
                await self._serve_agent(connection)
            elif first in METHODS:
                await self._controller.serve(first, reader, writer)
        except (WireError, WrongTokenError) as error:
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
            raise WireError(f"a hello that cannot be read: {error!r}") from error
        try:
            self._turn()
            while True:
                message = await connection.receive()
                if message is None:
                    break
                self._handle(session, message)
                await connection.drain()
        except (KeyError, TypeError, ValueError, ProtocolError) as error:
            raise WireError(f"{session.worker} sent what cannot be read: {error!r}") from error
        finally:
            self._unregister(session)

    def _register(self, connection: Connection, hello: Message) -> _Session:
        if hello["type"] != "hello" or hello["protocol"] != PROTOCOL:
            reason = f"protocol {PROTOCOL} is spoken here, not {hello.get('protocol')}"
            connection.send({"type": "refused", "reason": reason})
            raise WireError(reason)
        worker = self._registry.hello(hello, time.monotonic())
        session = _Session(connection, worker, hello["member"]["incarnation"])
        older = self._sessions.pop(worker, None)
        if older is not None:
            self._drop(older)
        self._sessions[worker] = session
        self._follow_membership()
        held = hello.get("membership") or {}
        if held.get("id") == self._store_of and self._registry.is_member(worker):
            self._store.restore([Entry.from_json(item) for item in hello["entries"]])
        log.info("%s registered", worker)
        return session

    def _unregister(self, session: _Session) -> None:
        self._drop(session)
        if self._sessions.get(session.worker) is session:
            del self._sessions[session.worker]
            self._registry.closed(session.worker, time.monotonic())
            self._turn()

    @staticmethod
    def _drop(session: _Session) -> None:
        session.connection.close()
        for task in session.requests.values():
            task.cancel()

    def _handle(self, session: _Session, message: Message) -> None:
        now, kind = time.monotonic(), message["type"]
        self._registry.heard(session.worker, now)
        if kind == "store":
            self._start_request(session, message)
        elif kind == "cancel":
            task = session.requests.get(message["id"])
            if task is not None:
                task.cancel()
        elif kind == "beat":
            session.connection.send({"type": "beat"})
            self._turn()
        else:
            if kind == "exited":
                self._registry.exited(session.worker, message, now)
            elif kind == "report":
                self._registry.reported(session.worker, message, now)
            elif kind == "bye":
                self._registry.left(session.worker)
            self._turn()

    # --- store ----------------------------------------------------------------------------------

    def _start_request(self, session: _Session, message: Message) -> None:
        task = asyncio.ensure_future(self._serve_request(session, message))
        session.requests[message["id"]] = task
        task.add_done_callback(lambda _: session.requests.pop(message["id"], None))

    async def _serve_request(self, session: _Session, message: Message) -> None:
        number = message["id"]
        remembered = self._replies.setdefault(session.incarnation, collections.OrderedDict())
        answer = remembered.get(number)
        if answer is None:
            answer = await self._execute(session, message)
            if answer.get("entries"):
                remembered[number] = answer
            if len(remembered) > REMEMBERED_WRITES:
                remembered.popitem(last=False)
        session.connection.send(answer)

    async def _execute(self, session: _Session, message: Message) -> Message:
        await self._store_ready.wait()
        overtaken = {"type": "stored", "id": message["id"], "overtaken": True}
        if message["membership"] != self._store_of or not self._registry.is_member(session.worker):
            return overtaken
        store = self._store
        try:
            request = Request.from_json(message["request"])
            applied = await store.apply(request)
            reply = applied.reply
            if applied.changed and _is_join(request):
                await self._gather(session)
                reply = await store.execute(Request(Op.GET, request.keys))
        except ProtocolError as error:
            log.warning("%s: %s", session.worker, error)
            return overtaken
        return {
            "type": "stored",
            "id": message["id"],
            "reply": base64.b64encode(reply).decode(),
            "entries": [entry.to_json() for entry in applied.changed],
        }

    async def _gather(self, session: _Session) -> None:
        """Wait until the torchrun of every member has spoken, so that none has to poll."""
        current, gathered = self._registry.current, self._gathered
        self._arrived.add(session.worker)
        if current and {member.worker for member in current.members} <= self._arrived:
            gathered.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(gathered.wait(), GATHER_SECONDS)

    def _follow_membership(self) -> None:
        """One store for each membership; usable once all who wrote to it have come back."""
        current = self._registry.current
        name = str(current.id) if current else ""
        if name != self._store_of:
            self._store, self._store_of = StoreBackend(Store()), name
            self._replies.clear()
            self._arrived, self._gathered = set(), asyncio.Event()
            if self._registry.unseen:  # relearned: they have met before
                self._gathered.set()
        if self._registry.unseen:
            self._store_ready.clear()
        else:
            self._store_ready.set()

    # --- decisions and reports --------------------------------------------------------------------

    def _turn(self) -> None:
        """Let the registry decide, then bring every agent and the report up to date."""
        now = time.monotonic()
        stall = now - self._last_tick - TICK_SECONDS
        self._last_tick = now
        if stall > STALL_SECONDS:
            log.warning("stood still for %.1f s; nobody's silence in it counts", stall)
            self._registry.forgive(stall)
        again_at = self._registry.decide(now)
        self._follow_membership()
        for session in list(self._sessions.values()):
            if not self._registry.knows(session.worker):
                session.connection.close()
                continue
            order = self._registry.order_for(session.worker)
            if order != session.order:
                session.connection.send(order)
                session.order = order
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if again_at is not None:
            delay = max(0.0, again_at - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._turn)
        self._publish()

    def _publish(self) -> None:
        report = self._registry.report(self._version)
        if report == self._report:
            return
        if str(report.reason) != self._report.reason:
            log.info("%s: %s", report.state, report.reason)
        self._version += 1
        self._report = self._registry.report(self._version)
        task = asyncio.ensure_future(self._wake_polls())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wake_polls(self) -> None:
        async with self._reported:
            self._reported.notify_all()

    async def _report_after(self, version: int, seconds: float) -> Report:
        """The report as soon as it is not `version`, or as it is after `seconds`."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._report_other_than(version), seconds)
        return self._report

    async def _report_other_than(self, version: int) -> None:
        async with self._reported:
            await self._reported.wait_for(lambda: self._report.version != version)

    def _expect(self, expectation: Expectation) -> None:
        self._registry.expect(expectation, time.monotonic())
        self._turn()


def _is_join(request: Request) -> bool:
    """Of a torchrun into its rendezvous; one that expects nothing only makes the key."""
    is_torchrun = request.op is Op.COMPARE_SET and request.keys[0].startswith(TORCHRUN_KEY)
    return is_torchrun and request.values[0] != b""
