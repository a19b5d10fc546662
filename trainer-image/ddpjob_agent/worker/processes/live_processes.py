"""Live processes: processes that stay when the membership changes, and their socket to the agent.

Both sides send JSON lines over a Unix stream socket. The agent sends each process its newest
`Assignment`; the processes report their progress (`ProcessMessage`). A process is stuck if it does
not leave a broken membership and its main thread does not move in a step or a collective. If a
process is stuck, the agent asks all processes to leave their state on disk for the processes that
replace them. `on_stuck` receives whether a process left its state.
A process that ends while others of its worker run has failed, or has ended before the last step.
If no failure of the command follows, `on_early_end` receives its local rank.
This module starts and kills no process. It knows nothing of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Callable

from ddpjob_agent.worker.processes.live_process import LiveProcess, is_superseded
from ddpjob_protocol.environment import STUCK_SECONDS
from ddpjob_protocol.messages.membership import MembershipId
from ddpjob_protocol.messages.process import DUMP_STATE, Assignment, ProcessMessage
from ddpjob_protocol.messages.warnings import MAX_PROBLEM, invalid_report, process_stuck
from ddpjob_protocol.parsers.report_check import check_process_message
from ddpjob_protocol.text import shorten

if TYPE_CHECKING:
    from ddpjob_protocol.messages.agent import Message

FAILURE_SECONDS = 4.0  # after the end of a process, for the command to fail; < BROKEN_SECONDS
CLOSE_SECONDS = 5.0  # after the end of the command, for the last messages of its processes
DUMP_SECONDS = 60.0  # at most, to write the state to the node's disk
SILENCE_SECONDS = 5.0  # without a heartbeat (one each second): the process leaves no state
POLL_SECONDS = 0.1
MAX_LINE_BYTES = 1 << 20

log = logging.getLogger("ddpjob.live")


class LiveProcesses:
    """The live processes of one worker."""

    def __init__(
        self,
        processes: int,
        send: Callable[[Message], None],
        on_stuck: Callable[[bool], None],
        on_early_end: Callable[[int], None],
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        """A process is stuck after `stuck_seconds` without movement in a broken membership."""
        self._count = processes
        self._send = send
        self._late = on_stuck
        self._on_early_end = on_early_end
        self._stuck_seconds = stuck_seconds
        self._processes: dict[int, LiveProcess] = {}
        self._unfinished: set[int] = set()  # local ranks that have steps to do, or had at their end
        self._starts = 0
        self._assignment = Assignment()
        self._sent_at = 0.0
        self._was_ready = False
        self._has_refused = False
        self.entered = ""  # the last membership that a process of this start has entered

    async def listen(self, path: str) -> None:
        """Open the socket at `path`."""
        self._server = await asyncio.start_unix_server(self._connected, path, limit=MAX_LINE_BYTES)
        self._watch = asyncio.ensure_future(self._watch_regroup())

    def close(self) -> None:
        """Stop listening and watching."""
        self._server.close()
        self._watch.cancel()

    @property
    def ready(self) -> bool:
        """True if all processes are connected and none is in a membership."""
        processes = self._processes.values()
        return self._are_all_connected and not any(each.entered or each.stops for each in processes)

    @property
    def stops(self) -> bool:
        """True if all processes are connected and accept a last step."""
        return self._are_all_connected and all(each.stops for each in self._processes.values())

    @property
    def stopped(self) -> bool:
        """True if all processes are connected and have stopped."""
        return self._are_all_connected and all(each.stopped for each in self._processes.values())

    @property
    def _are_all_connected(self) -> bool:
        return len(self._processes) == self._count

    @property
    def finished_in(self) -> str:
        """The membership in which a process has done its last step; it enters no other one."""
        found = [each.finished_in for each in self._processes.values() if each.finished_in]
        return max(found, key=MembershipId.parse, default="")

    @property
    def first_rank(self) -> int:
        """The rank of local rank 0."""
        return self._assignment.first_rank

    async def early_ends(self) -> set[int]:
        """Return the local ranks that ended before the last step, after the command has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + CLOSE_SECONDS
        while self._processes and loop.time() < until:  # noqa: ASYNC110 - the last messages
            await asyncio.sleep(POLL_SECONDS / 10)
        return set() if self._assignment.leave else set(self._unfinished)

    def reset(self) -> None:
        """Disconnect the old processes before the command starts again."""
        for process in self._processes.values():
            process.writer.close()
        self._processes.clear()
        self._unfinished.clear()
        self._starts += 1
        self._was_ready = False
        self._has_refused = False
        self.entered = ""

    def assign(self, assignment: Assignment) -> None:
        """Send the assignment to all processes, and to each process that connects later."""
        if assignment == self._assignment:
            return
        if not (assignment.stop_requested and self._assignment.stop_requested):
            for process in self._processes.values():
                process.promise = None
        self._assignment = assignment
        self._sent_at = asyncio.get_running_loop().time()
        for process in self._processes.values():
            process.assign(assignment)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        process: LiveProcess | None = None
        try:
            while line := await reader.readline():
                checked = self._parse(line)
                if checked is None:
                    continue
                answer, message = checked
                local_rank = message["local_rank"]
                if answer is ProcessMessage.LIVE:
                    self._send({"type": "live"})
                    continue
                if process is None:
                    process = self._processes[local_rank] = LiveProcess(writer, local_rank)
                    process.assign(self._assignment)
                self._on_message(process, answer, message)
        except ValueError as error:
            log.warning("a process sent a line without an end: %r", error)
        except (ConnectionError, asyncio.CancelledError) as error:
            log.debug("a process is gone: %r", error)
        finally:
            if process is not None and self._processes.get(process.local_rank) is process:
                del self._processes[process.local_rank]
                with contextlib.suppress(RuntimeError):
                    asyncio.get_running_loop().call_later(
                        FAILURE_SECONDS, self._check_end, process.local_rank, self._starts
                    )
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the agent ends
                writer.close()

    def _parse(self, line: bytes) -> tuple[ProcessMessage, Message] | None:
        """Return the message in a line; report the first odd message of each start."""
        try:
            return check_process_message(json.loads(line))
        except (RecursionError, ValueError) as error:
            if not self._has_refused:
                self._has_refused = True
                log.warning(
                    "a message of a process is refused: %s", shorten(str(error), MAX_PROBLEM)
                )
                self._send(invalid_report(str(error)).to_message())
            return None

    def _on_message(self, process: LiveProcess, answer: ProcessMessage, message: Message) -> None:
        process.on_message(answer, message, asyncio.get_running_loop().time())
        if answer is ProcessMessage.HELLO:
            self._unfinished.add(process.local_rank)
        elif answer is ProcessMessage.FINISHED:
            self._unfinished.discard(process.local_rank)
        if answer is ProcessMessage.PROMISE:
            promises = [each.promise for each in self._processes.values()]
            known = [promise for promise in promises if promise is not None]
            if (
                self._are_all_connected
                and len(known) == self._count
                and self._assignment.stop_requested
            ):
                self._send({"type": "promise", "step": max(known)})
        elif answer is ProcessMessage.BROKEN:
            self._send(
                {"type": "broken", "membership": message["membership"], "why": message["why"]}
            )
        elif answer is ProcessMessage.ENTERED:
            self.entered = process.entered
        elif answer is ProcessMessage.STOPS:
            asks = {"membership": message["membership"], "rank": message.get("rank")}
            self._send({"type": "asks", **asks})
            if self.stops:
                self._send({"type": "stops", "membership": message["membership"]})
        elif answer is ProcessMessage.FINISHED:
            self._send({"type": "finished", "membership": process.finished_in})
        if self.ready and not self._was_ready:
            self._send({"type": "ready"})
        self._was_ready = self.ready

    def _check_end(self, local_rank: int, start: int) -> None:
        is_early = local_rank in self._unfinished and not self._assignment.leave
        if is_early and start == self._starts and self._processes:
            self._on_early_end(local_rank)

    async def _watch_regroup(self) -> None:
        while True:
            await asyncio.sleep(self._stuck_seconds / 10)
            stuck = [p for p in self._processes.values() if self._is_stuck(p)]
            for process in stuck:
                log.warning(
                    "local rank %d hangs in its collective at %s: %s",
                    process.local_rank, process.line, process.where,
                )  # fmt: skip
            if stuck:
                left = None if self._assignment.leave else await self._request_state_dump()
                if any(self._processes.get(process.local_rank) is process for process in stuck):
                    what = (stuck[0].entered, left, stuck[0].line, self._stuck_seconds)
                    self._send(process_stuck(*what).to_message())
                    self.reset()
                    self._late(left is not None)

    async def _request_state_dump(self) -> int | None:
        """Ask all processes to leave their state; return the highest step left, or None."""
        loop = asyncio.get_running_loop()
        asked, until = [*self._processes.values()], loop.time() + DUMP_SECONDS
        for process in asked:
            process.asked_to_leave = True
            process.send(DUMP_STATE)
        # No event marks the silence of a process, so poll.
        while loop.time() < until and any(self._is_leaving(each) for each in asked):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        left = [process.left for process in asked if process.left is not None]
        log.info("the processes dumped the states of steps %s", left)
        return max(left, default=None)

    def _is_leaving(self, process: LiveProcess) -> bool:
        is_here = self._processes.get(process.local_rank) is process
        silence = asyncio.get_running_loop().time() - process.last_message_at
        return is_here and process.asked_to_leave and silence < SILENCE_SECONDS

    def _is_stuck(self, process: LiveProcess) -> bool:
        if (
            process.finished_in
            or not process.entered
            or not is_superseded(process.entered, self._assignment)
        ):
            return False
        now = asyncio.get_running_loop().time()
        return now - max(self._sent_at, process.moved_at) > self._stuck_seconds
