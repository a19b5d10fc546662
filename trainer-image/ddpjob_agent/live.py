"""Live processes (L2): those that stay when the membership changes, and their line to the agent.

A Unix stream socket; JSON lines both ways. The agent tells each process its `Place`, the newest
one only; the processes say how far they are (`Answer`). Who does not come out of a broken
membership while its main thread stands still is given up: `Live.late` says so.
Starts and kills nothing; knows nothing of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, Callable

from .contract import Answer, MembershipId, Place

if TYPE_CHECKING:
    from .contract import Message

ARRIVE_SECONDS = 10.0  # at most, without any movement, on the way out of a broken membership
MAX_LINE_BYTES = 1 << 20

log = logging.getLogger("ddpjob.live")


class _Process:
    """One connected training process."""

    def __init__(self, writer: asyncio.StreamWriter, local_rank: int) -> None:
        self.writer = writer
        self.local_rank = local_rank
        self.promise: int | None = None
        self.entered = ""  # membership
        self.arrived = ""
        self.where: Any = None
        self.moved_at = 0.0
        self.finished = False
        self.stops = False  # it does not stay, but can be told after which step to stop
        self.stopped = False

    def tell(self, place: Place) -> None:
        self.writer.write(json.dumps(place.to_json()).encode() + b"\n")


class Live:
    """The processes of one worker."""

    def __init__(
        self, processes: int, send: Callable[[Message], None], late: Callable[[], None]
    ) -> None:
        self._count = processes
        self._send = send
        self._late = late
        self._processes: dict[int, _Process] = {}
        self._place = Place()
        self._told_at = 0.0
        self._was_ready = False
        self.entered = ""  # the last membership that a process of this start has entered

    async def listen(self, path: str) -> None:
        """Open the socket at `path`."""
        self._server = await asyncio.start_unix_server(self._connected, path, limit=MAX_LINE_BYTES)
        self._watch = asyncio.ensure_future(self._watch_arrivals())

    def close(self) -> None:
        """Listen and watch no more."""
        self._server.close()
        self._watch.cancel()

    @property
    def ready(self) -> bool:
        """Whether all processes could be in another membership: none is in one yet, or still."""
        processes = self._processes.values()
        return self._are_all_here and not any(each.entered or each.stops for each in processes)

    @property
    def stops(self) -> bool:
        """Whether all processes can be told after which step to stop."""
        return self._are_all_here and all(each.stops for each in self._processes.values())

    @property
    def stopped(self) -> bool:
        """Whether they all have done so."""
        return self._are_all_here and all(each.stopped for each in self._processes.values())

    @property
    def _are_all_here(self) -> bool:
        return len(self._processes) == self._count

    @property
    def finished(self) -> bool:
        """Whether a process has done all its steps, and changes no more."""
        return any(process.finished for process in self._processes.values())

    def begin(self) -> None:
        """The command starts anew."""
        for process in self._processes.values():
            process.writer.close()
        self._processes.clear()
        self._was_ready = False
        self.entered = ""

    def tell(self, place: Place) -> None:
        """What the processes are to do, now and when they connect."""
        if place == self._place:
            return
        if not (place.asked and self._place.asked):
            for process in self._processes.values():
                process.promise = None
        self._place = place
        self._told_at = asyncio.get_running_loop().time()
        for process in self._processes.values():
            process.tell(place)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process: _Process | None = None
        try:
            while line := await reader.readline():
                message = json.loads(line)
                answer, local_rank = Answer(message["answer"]), int(message["local_rank"])
                if answer is Answer.LIVE:
                    self._send({"type": "live"})
                    continue
                if process is None:
                    process = self._processes[local_rank] = _Process(writer, local_rank)
                    process.tell(self._place)
                self._heard(process, answer, message)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("a process says what cannot be read: %r", error)
        except (ConnectionError, asyncio.CancelledError) as error:
            log.debug("a process is gone: %r", error)
        finally:
            if process is not None and self._processes.get(process.local_rank) is process:
                del self._processes[process.local_rank]
            with contextlib.suppress(RuntimeError):  # the loop is closed: the agent ends
                writer.close()

    def _heard(self, process: _Process, answer: Answer, message: Message) -> None:
        if answer is Answer.PROMISE:
            process.promise = int(message["step"])
            promises = [each.promise for each in self._processes.values()]
            known = [promise for promise in promises if promise is not None]
            if self._are_all_here and len(known) == self._count and self._place.asked:
                self._send({"type": "promise", "step": max(known)})
        elif answer is Answer.BROKEN:
            self._send(
                {"type": "broken", "membership": message["membership"], "why": message["why"]}
            )
        elif answer is Answer.AT:
            if message["where"] != process.where:
                process.where = message["where"]
                process.moved_at = asyncio.get_running_loop().time()
        elif answer is Answer.ARRIVED:
            process.arrived, process.entered = message["membership"], ""
        elif answer is Answer.ENTERED:
            self.entered = process.arrived = process.entered = message["membership"]
        elif answer is Answer.STOPS:
            process.stops = True
            if self.stops:
                self._send({"type": "stops", "membership": message["membership"]})
        elif answer is Answer.STOPPED:
            process.stopped = True
        elif answer is Answer.FINISHED:
            process.finished = True
            self._send({"type": "finished"})
        if self.ready and not self._was_ready:
            self._send({"type": "ready"})
        self._was_ready = self.ready

    async def _watch_arrivals(self) -> None:
        while True:
            await asyncio.sleep(ARRIVE_SECONDS / 10)
            stuck = [p for p in self._processes.values() if self._is_stuck(p)]
            if stuck:
                for process in stuck:
                    log.warning(
                        "local rank %d does not come out of its collective: it is at %s",
                        process.local_rank, process.where,
                    )  # fmt: skip
                self.begin()
                self._late()

    def _is_stuck(self, process: _Process) -> bool:
        if process.finished or not process.entered:
            return False
        membership, entered = self._place.membership, MembershipId.parse(process.entered)
        if membership is None:
            over = self._place.after is None
        else:
            over = membership.id > entered and membership.stops_at_once(entered)
        if not over:
            return False
        now = asyncio.get_running_loop().time()
        return now - max(self._told_at, process.moved_at) > ARRIVE_SECONDS
