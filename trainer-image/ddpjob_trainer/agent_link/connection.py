"""A process's line to its agent: which membership to be in, and how far this process is.

A thread reads; the newest word counts. It answers by itself when the agent asks how far this
process may get, and breaks off the group that the main thread may be blocked in when that is over.
When the main thread cannot come out of it, the state is left by another one.
Knows nothing of torch.
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
from ddpjob_protocol.membership import Membership
from ddpjob_protocol.process import LEAVE_STATE, Assignment, ProcessMessage

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

CALLS = 6  # that are told of the main thread, from the innermost on
TRACE_SECONDS = 1.0  # between two words on where the main thread is, while it should come out

_log = logging.getLogger("ddpjob")


class Abortable(Protocol):
    """The group that the main thread may be blocked in."""

    connecting: bool  # it is being formed: that ends by itself

    def abort(self) -> None:
        """Let every collective fail now; from any thread."""


class AgentConnection:
    """What the agent wants, and what it hears."""

    def __init__(
        self,
        path: str,
        local_rank: int,
        group: Abortable | None = None,
        dump_state: Callable[[Path], int | None] = lambda _: None,
    ) -> None:
        self._local_rank = local_rank
        self._group = group
        self._leave_state = dump_state
        self._condition = threading.Condition()
        self._place = Assignment()
        self._entered: Membership | None = None
        self._out = True  # of every group
        self._promised: int | None = None
        self._next: int | None = None  # the step in progress, or to begin next; None: not known yet
        self._last = 0
        self._main = threading.main_thread().ident
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._send_lock = threading.Lock()

    def start(self, first: ProcessMessage = ProcessMessage.HELLO, **facts: Any) -> None:
        """Say what this process is, and listen from now on."""
        self.send(first, **facts)
        threading.Thread(target=self._listen, name="ddpjob-line", daemon=True).start()
        if self._group is not None:
            trace = partial(self._trace, self._group)
            threading.Thread(target=trace, name="ddpjob-trace", daemon=True).start()

    def send(self, answer: ProcessMessage, **facts: Any) -> None:
        """Tell the agent; an agent that is gone takes this process with it anyway."""
        words = {"answer": answer.value, "local_rank": self._local_rank, **facts}
        with self._send_lock, contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(words).encode() + b"\n")

    # --- what the main thread asks ----------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        """The newest word."""
        with self._condition:
            return self._place

    def wait_for_change(self, assignment: Assignment, seconds: float | None = None) -> bool:
        """Wait until the newest word is another one than `assignment`; whether it is."""
        with self._condition:
            return self._condition.wait_for(lambda: self._place != assignment, seconds)

    def may_start_step(self, step: int) -> bool:
        """Whether a promise does not stand against it."""
        with self._condition:
            return self._promised is None or step <= self._promised

    def report_step(self, step: int, last: int) -> None:
        """This step is in progress, or begins next; `last` is the job's last one."""
        with self._condition:
            self._next, self._last = step, last
            self._promise()

    def left_group(self, membership: Membership | None) -> None:
        """Out of every other group, about to enter this one, or none."""
        with self._condition:
            self._out, self._entered, self._next, self._promised = True, None, None, None
        self.send(ProcessMessage.ARRIVED, membership=str(membership.id) if membership else "")

    def entering_group(self, membership: Membership) -> bool:
        """A group of this membership is being made; whether it is still wanted."""
        with self._condition:
            self._entered, self._out = membership, False
            return not self._is_superseded()

    def entered_group(self, membership: Membership) -> None:
        """In it, with the state that all have."""
        self.send(ProcessMessage.ENTERED, membership=str(membership.id))

    def wait_until_superseded(self, seconds: float, why: str) -> bool:
        """Say why the group is broken, and wait for another membership; whether it came."""
        with self._condition:
            entered = self._entered
        if entered is not None:
            self.send(ProcessMessage.BROKEN, membership=str(entered.id), why=why)

        def other() -> bool:
            now = self._place.membership
            return now is None or entered is None or now.id > entered.id

        with self._condition:
            return self._condition.wait_for(other, seconds)

    def is_superseded(self) -> bool:
        """Whether the group that this process is in, or enters, is to be left at once."""
        with self._condition:
            return self._is_superseded()

    # --- the listening thread ---------------------------------------------------------------------

    def _is_superseded(self) -> bool:
        place, entered = self._place, self._entered
        if self._out or entered is None:
            return False
        at_end = self._next is not None and self._next > self._last
        if place.membership is not None:
            is_newer = place.membership.id > entered.id
            return is_newer and (at_end or place.membership.stops_at_once(entered.id))
        return at_end or place.last_step is None

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                words = json.loads(line)
                if words == LEAVE_STATE:
                    threading.Thread(
                        target=self._dump_state, name="ddpjob-leave", daemon=True
                    ).start()
                    continue
                place = decode(Assignment, words)
                with self._condition:
                    if not (place.stop_requested and self._place.stop_requested):
                        self._promised = None
                    self._place = place
                    self._promise()
                    over = self._is_superseded()
                    self._condition.notify_all()
                if over and self._group is not None:
                    self._group.abort()
        os.kill(os.getpid(), 9)  # the agent is gone, or has given this process up

    def _dump_state(self) -> None:
        """This process is about to be ended: save what it has, unless the main thread moves."""
        path, group, step = dumped_state_path(), self._group, None
        if path is not None and group is not None:
            before = self._where(group)
            try:
                step = self._leave_state(path)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
                _log.warning("the state cannot be left to the next process: %r", error)
            if step is None or self._where(group) != before:
                path.unlink(missing_ok=True)
                step = None
        self.send(ProcessMessage.LEFT, step=step)

    def _promise(self) -> None:
        """With the condition held: answer once, as soon as it is known where this process is."""
        if self._place.stop_requested and self._promised is None and self._next is not None:
            self._promised = min(self._next + 1, self._last)
            self.send(ProcessMessage.PROMISE, step=self._promised)

    def _trace(self, group: Abortable) -> None:
        """Tell where the main thread is while it should come out: whether it moves at all."""
        while True:
            time.sleep(TRACE_SECONDS)
            if self.is_superseded():
                self.send(ProcessMessage.AT, where=self._where(group))
                group.abort()

    def _where(self, group: Abortable) -> str:
        """Another text whenever the main thread has moved, or waits for no longer than it may."""
        if group.connecting:
            return str(time.monotonic())
        frame = sys._current_frames().get(self._main or 0)  # noqa: SLF001 - the only way
        return _parse_assignment(frame) if frame else ""


def _parse_assignment(frame: FrameType) -> str:
    """Where it is, for people, and whether it is still the same call."""
    calls: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(calls) < CALLS:
        calls.append(f"{at.f_code.co_filename}:{at.f_lineno}")
        at = at.f_back
    return f"{' < '.join(calls)} ({id(frame):x}:{frame.f_lasti})"


def dumped_state_path() -> Path | None:
    """Where a process with this local rank leaves its state to the one that comes in its place."""
    path = os.environ.get(ENV_LEFT_STATE)
    return Path(f"{path}.{os.environ.get('LOCAL_RANK', '0')}") if path else None


def connect(group: Abortable, dump_state: Callable[[Path], int | None]) -> AgentConnection | None:
    """The line of this process; None without an agent. Does not return if it must start anew."""
    path = os.environ.get(ENV_GROUP_SOCKET)
    if not path:
        return None
    line = AgentConnection(path, int(os.environ.get("LOCAL_RANK", "0")), group, dump_state)
    if os.environ.get(ENV_LIVE) != "1":
        # The agent could not know that the processes of this job stay: it starts all of them
        # again, each worker with a torchrun of its own, and ends this one.
        line.send(ProcessMessage.LIVE)
        threading.Event().wait()
    return line
