"""The connection of a process to its agent: receives assignments, sends the process's progress.

A thread listens; the newest assignment counts. If the agent requests a stop, the thread promises
the last step of this process. If the group is superseded, the thread aborts it, as the main thread
may be blocked in it. If the main thread stays blocked, another thread dumps the state.
Does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddpjob_protocol.codec import decode
from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_LEFT_STATE, ENV_LIVE
from ddpjob_protocol.messages.membership import Membership
from ddpjob_protocol.messages.process import DUMP_STATE, Assignment, ProcessMessage
from ddpjob_trainer.reporting import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

CALLS = 6  # of the main thread in a report, innermost first
TRACE_SECONDS = 1.0  # between two reports of the main thread, while it leaves a group

_log = logging.getLogger("ddpjob")


class Abortable(Protocol):
    """The group that the main thread may be blocked in."""

    connecting: bool  # the group is being formed; forming ends by itself

    def abort(self) -> None:
        """Fail every collective now; callable from any thread."""


class AgentConnection:
    """The connection of one process to its agent."""

    def __init__(
        self,
        path: str,
        local_rank: int,
        group: Abortable | None = None,
        dump_state: Callable[[Path], int | None] = lambda _: None,
    ) -> None:
        self._local_rank = local_rank
        self._group = group
        self._write_state = dump_state
        self._condition = threading.Condition()
        self._assignment = Assignment()
        self._entered: Membership | None = None
        self._is_outside = True  # True outside of every group
        self.is_between_steps = (
            False  # True while the main thread runs the script between two steps
        )
        self._promised: int | None = None
        self._next: int | None = None  # the step in progress, or the next one; None: unknown
        self._last = 0
        self._main = threading.main_thread().ident
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._send_lock = threading.Lock()

    def start(self, first: ProcessMessage = ProcessMessage.HELLO, **facts: Any) -> None:
        """Send the first message, and start listening."""
        self.send(first, **facts)
        threading.Thread(target=self._listen, name="ddpjob-agent-link", daemon=True).start()
        if self._group is not None:
            trace = partial(self._trace, self._group)
            threading.Thread(target=trace, name="ddpjob-trace", daemon=True).start()

    def send(self, answer: ProcessMessage, **facts: Any) -> None:
        """Send a message to the agent; ignore a lost agent, as this process ends with it."""
        words = {"answer": answer.value, "local_rank": self._local_rank, **facts}
        with self._send_lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(words).encode() + b"\n")

    # --- calls of the main thread ----------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        """The newest assignment."""
        with self._condition:
            return self._assignment

    def wait_for_change(self, assignment: Assignment, seconds: float | None = None) -> bool:
        """Wait for an assignment other than this one; return whether there is one."""
        with self._condition:
            return self._condition.wait_for(lambda: self._assignment != assignment, seconds)

    def may_start_step(self, step: int) -> bool:
        """Return whether no promise forbids this step."""
        with self._condition:
            return self._promised is None or step <= self._promised

    def report_step(self, step: int, last: int) -> None:
        """Record the step in progress, or the next one; `last` is the job's last step."""
        with self._condition:
            self._next, self._last = step, last
            self._promise()

    def left_group(self, membership: Membership | None) -> None:
        """Report that this process left its group, and is about to join this membership, if any."""
        with self._condition:
            self._is_outside, self._entered, self._next, self._promised = True, None, None, None
        self.send(ProcessMessage.ARRIVED, membership=str(membership.id) if membership else "")

    def entering_group(self, membership: Membership) -> bool:
        """Record that a group of this membership forms; return False if it is superseded."""
        with self._condition:
            self._entered, self._is_outside = membership, False
            return not self._is_superseded()

    def entered_group(self, membership: Membership) -> None:
        """Report that this process joined the membership and has its state."""
        self.send(ProcessMessage.ENTERED, membership=str(membership.id))

    def wait_until_superseded(self, seconds: float, why: str) -> bool:
        """Report a broken group; return whether another membership follows within `seconds`."""
        with self._condition:
            entered = self._entered
        if entered is not None:
            self.send(ProcessMessage.BROKEN, membership=str(entered.id), why=why)

        def other() -> bool:
            now = self._assignment.membership
            return now is None or entered is None or now.id > entered.id

        with self._condition:
            return self._condition.wait_for(other, seconds)

    def may_finish(self) -> bool:
        """Return whether no other membership follows the last step.

        After a promise, wait for the assignment: a worker that joins needs the state of this one.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: self._promised is None or not self._assignment.stop_requested
            )
            return not self._is_superseded()

    def finished(self) -> None:
        """Report that this process has done all steps, in the membership that it entered."""
        with self._condition:
            entered = self._entered
        self.send(ProcessMessage.FINISHED, **({"membership": str(entered.id)} if entered else {}))

    def is_superseded(self) -> bool:
        """Return whether this process must leave its current or forming group at once."""
        with self._condition:
            return self._is_superseded()

    # --- the listening thread ---------------------------------------------------------------------

    def _is_superseded(self) -> bool:
        assignment, entered = self._assignment, self._entered
        if self._is_outside or entered is None:
            return False
        at_end = self._next is not None and self._next > self._last
        if assignment.membership is not None:
            is_newer = assignment.membership.id > entered.id
            return is_newer and (at_end or assignment.membership.stops_at_once(entered.id))
        return at_end or assignment.last_step is None

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                words = json.loads(line)
                if words == DUMP_STATE:
                    threading.Thread(
                        target=self._dump_state, name="ddpjob-leave", daemon=True
                    ).start()
                    continue
                assignment = decode(Assignment, words)
                with self._condition:
                    if not (assignment.stop_requested and self._assignment.stop_requested):
                        self._promised = None
                    self._assignment = assignment
                    self._promise()
                    self._condition.notify_all()
                if self._group is not None:
                    self._abort_superseded(self._group)
        os.kill(os.getpid(), 9)  # the agent has ended, or ends this process

    def _dump_state(self) -> None:
        """Dump the state of a stuck process; discard the dump if the main thread moved."""
        path, group, step = dumped_state_path(), self._group, None
        if path is not None and group is not None:
            before = self._where(group)
            try:
                step = self._write_state(path)
            except Exception as error:  # noqa: BLE001 - this process ends in any case
                _log.warning("cannot dump the state for the next process: %r", error)
            if step is None or self._where(group) != before:
                path.unlink(missing_ok=True)
                step = None
        self.send(ProcessMessage.LEFT, step=step)

    def _promise(self) -> None:
        """Promise the last step once, as soon as the current step is known. Needs the condition."""
        if self._assignment.stop_requested and self._promised is None and self._next is not None:
            self._promised = max(0, min(self._next + 1, self._last))
            self.send(ProcessMessage.PROMISE, step=self._promised)

    def _trace(self, group: Abortable) -> None:
        """Report the position of the main thread while it must leave a superseded group."""
        while True:
            time.sleep(TRACE_SECONDS)
            if self.is_superseded():
                self.send(ProcessMessage.AT, **self._position(group))
                self._abort_superseded(group)

    def _abort_superseded(self, group: Abortable) -> None:
        """Abort the group if it is superseded. The lock keeps the main thread from the next one."""
        with self._condition:
            if self._is_superseded():
                group.abort()

    def _position(self, group: Abortable) -> dict[str, Any]:
        """Return the fields of AT."""
        frame = self._main_frame()
        is_free = self.is_between_steps and not _is_in_collective(frame)
        line = heartbeat.line_of(frame)
        return {"where": self._where(group), "line": line, "free": is_free or group.connecting}

    def _where(self, group: Abortable) -> str:
        """Return the main thread's position; while the group connects, a new text at each call."""
        if group.connecting:
            return str(time.monotonic())
        frame = self._main_frame()
        return _describe_frame(frame) if frame else ""

    def _main_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main or 0)  # noqa: SLF001 - the only way


def _is_in_collective(frame: FrameType | None) -> bool:
    """Return whether a thread is inside a function of torch.distributed."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch.distributed"):
            return True
        frame = frame.f_back
    return False


def _describe_frame(frame: FrameType) -> str:
    """Return the innermost calls of a thread, and an identifier of the current call."""
    calls: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(calls) < CALLS:
        calls.append(f"{at.f_code.co_filename}:{at.f_lineno}")
        at = at.f_back
    return f"{' < '.join(calls)} ({id(frame):x}:{frame.f_lasti})"


def dumped_state_path() -> Path | None:
    """Return the path of the state that a process leaves to its successor of equal local rank."""
    path = os.environ.get(ENV_LEFT_STATE)
    return Path(f"{path}.{os.environ.get('LOCAL_RANK', '0')}") if path else None


def connect(group: Abortable, dump_state: Callable[[Path], int | None]) -> AgentConnection | None:
    """Connect to the agent; None without one. Block if the agent must restart this process."""
    path = os.environ.get(ENV_GROUP_SOCKET)
    if not path:
        return None
    line = AgentConnection(path, int(os.environ.get("LOCAL_RANK", "0")), group, dump_state)
    if os.environ.get(ENV_LIVE) != "1":
        # The agent did not know that this job uses live mode. It ends this process and starts all
        # processes again, with a separate torchrun on each worker.
        line.send(ProcessMessage.LIVE)
        threading.Event().wait()
    return line
