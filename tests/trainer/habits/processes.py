"""The processes of one run of a script, and what they log.

A process that has imported everything forks them. At some steps a process that logs waits for the
test's answer, so each change of the membership happens at a chosen point: nothing depends on time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.worker.processes.live_processes import LiveProcesses
from ddpjob_protocol.environment import ENV_GROUP_SOCKET, ENV_JOB, ENV_JOB_UID
from ddpjob_protocol.messages.agent import Message
from ddpjob_protocol.messages.process import Assignment
from support.forked import Forks
from trainer.habits.runs import Ended, Row, Run

NEVER = 10**9
PATIENCE_SECONDS = 240.0
NOTHING = {"what": "", "after": 0}


class Process:
    """A process of a script, with the agent's side of its socket."""

    def __init__(self, key: str, folder: Path) -> None:
        self.key = key
        self.output = folder / f"{key}.output"
        self.socket = folder / f"{key}.sock"
        self.pid = 0
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_victim = False  # the test ends it
        self.is_member = True  # False while it waits to join
        self.logs = 0
        self.order: dict[str, Any] | None = None  # the answer to the next log
        self.promise: int | None = None  # the last step that it does in this membership
        self.assignment: Assignment | None = None
        self.agent = LiveProcesses(
            1, self._receive, lambda _: None, lambda _: None, PATIENCE_SECONDS
        )

    def _receive(self, words: Message) -> None:
        if words["type"] == "promise":
            self.promise = words["step"]

    @property
    def has_ended(self) -> bool:
        """True if it has ended, in whatever way."""
        return self.code.done()


class Zygote:
    """The process that forks."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._by_pid: dict[int, Process] = {}
        self._connected = asyncio.Event()

    async def start(self, forks: Forks, folder: Path, environment: dict[str, str]) -> None:
        """Import everything."""
        path = folder / "zygote.sock"
        self._server = await asyncio.start_unix_server(self._read, str(path))
        script = Path(__file__).with_name("zygote.py")
        self.program = forks.start(script, path, env=environment, folder=folder)
        await asyncio.wait_for(self._connected.wait(), PATIENCE_SECONDS)

    async def _read(self, lines: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        while line := await lines.readline():
            words = json.loads(line)
            if "ready" in words:
                self._connected.set()
            elif "key" in words:
                process = self._processes[words["key"]]
                process.pid = words["pid"]
                self._by_pid[process.pid] = process
            else:
                self._by_pid.pop(words["pid"]).code.set_result(words["code"])

    def fork(
        self, process: Process, script: str, folder: Path, environment: dict[str, str]
    ) -> None:
        """Start the script in a process of its own."""
        key = f"{folder}/{process.key}"
        self._processes[key] = process
        request = {
            "key": key, "script": script, "folder": str(folder), "environment": environment,
            "output": str(process.output),
        }  # fmt: skip
        self._writer.write(json.dumps(request).encode() + b"\n")

    async def stop(self) -> None:
        """End it; no process that it forked may be left."""
        self._writer.close()
        self._server.close()
        await asyncio.to_thread(self.program.wait)


class Job:
    """One run of a script."""

    def __init__(self, zygote: Zygote, script: str, folder: Path, every: int = NEVER) -> None:
        self._zygote, self._script, self.folder = zygote, script, folder
        self._every = every  # steps between two logs that wait
        self._rows: list[Row] = []
        self.all: list[Process] = []
        self.members: list[Process] = []
        self._stores: list[asyncio.Server] = []
        self.number = 0  # of the membership
        self.step = 0  # the last one that was logged
        self._hold_at = NEVER
        self._is_held = asyncio.Event()
        self._is_paused = asyncio.Event()
        self._go = asyncio.Event()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve the sockets of the run; end all of its processes at the end of the block."""
        tracker = await asyncio.start_unix_server(self._serve, str(self.folder / "tracker.sock"))
        await self.open_store()
        try:
            yield
        finally:
            await self.until(lambda: all(each.pid for each in self.all), "all have started")
            for process in self.all:
                kill(process)
            for process in self.all:
                await process.code
                process.agent.close()
            tracker.close()
            for store in self._stores:
                store.close()

    async def open_store(self) -> None:
        """Serve a new store to the processes that start from now on."""
        backend = StoreBackend(Store())
        store = await asyncio.start_server(
            lambda reader, writer: serve_client(reader, writer, backend), "127.0.0.1", 0
        )
        self._stores.append(store)
        self.port = store.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                words = json.loads(line)
                pid, waits = words.pop("pid"), words.pop("waits")
                process = next(each for each in self.all if each.pid == pid)
                if "paused" in words:
                    self._is_paused.set()
                    await self._go.wait()
                    answer = NOTHING
                else:
                    self._rows.append(Row(**words))
                    process.logs += 1
                    self.step = max(self.step, words["step"])
                    if not waits:
                        continue
                    answer = await self._order(process, words["step"])
                writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    async def _order(self, process: Process, step: int) -> dict[str, Any]:
        # Not in its first step: in snapshot mode it promises no last step before `due`.
        if step >= self._hold_at and process in self.members and process.logs > 1:
            self._is_held.set()
            await self._go.wait()
        order, process.order = process.order, None
        return order or NOTHING

    async def start(self, **environment: str) -> Process:
        """Start one process."""
        process = Process(str(len(self.all)), self.folder)
        self.all.append(process)
        await process.agent.listen(str(process.socket))
        env = {
            "TRACKER": str(self.folder / "tracker.sock"), "TRACKER_EVERY": str(self._every),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", ENV_JOB: "default/habits",
            ENV_JOB_UID: "habits", ENV_GROUP_SOCKET: str(process.socket), **environment,
        }  # fmt: skip
        self._zygote.fork(process, self._script, self.folder, env)
        return process

    async def hold(self) -> bool:
        """Let the members wait in a log, at a later step; False if a member has ended."""
        self._hold_at = (self.step // self._every + 1) * self._every
        self._go.clear()
        self._is_held.clear()
        await self.until(self._is_held.is_set, f"step {self._hold_at}", or_an_end=True)
        return self._is_held.is_set()

    def release(self) -> None:
        """Release all."""
        self._hold_at = NEVER
        self._go.set()

    async def pause(self, process: Process, points: int) -> None:
        """Release all, until this one has passed some points; it waits there."""
        process.order = {"what": "pause", "after": points}
        self._is_paused.clear()
        self._hold_at = NEVER
        self._go.set()
        await asyncio.sleep(0)
        self._go.clear()
        await self.until(self._is_paused.is_set, "a pause", or_an_end=True)

    async def die(self, process: Process, points: int) -> bool:
        """Release all, and this one die after some points; False if it ends in another way."""
        process.order = {"what": "die", "after": points}
        process.is_victim = True
        self.release()
        await self.until(lambda: process.has_ended, "the end of a process")
        process.is_victim = process.code.result() == -signal.SIGKILL
        return process.is_victim

    async def until(
        self, condition: Callable[[], bool], what: str, *, or_an_end: bool = False
    ) -> None:
        """Wait for what the processes do, or for the end of a member."""

        async def poll() -> None:
            # No event marks what an agent has received, so poll.
            while not condition() and not (or_an_end and self.has_lost_one):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        await self._patient(poll(), what)

    async def _patient(self, awaited: Awaitable[None], what: str) -> None:
        try:
            await asyncio.wait_for(awaited, PATIENCE_SECONDS)
        except TimeoutError:
            outputs = [f"{each.key}: {read(each)[-2000:]}" for each in self.all]
            told = "\n".join([f"never: {what}; at step {self.step}", *outputs])
            raise AssertionError(told) from None

    @property
    def has_lost_one(self) -> bool:
        """True if a member has ended."""
        return any(each.has_ended for each in self.members)

    @property
    def is_ending(self) -> bool:
        """True if a member has ended, or has done all its steps."""
        return self.has_lost_one or any(bool(each.agent.finished_in) for each in self.members)

    async def finish(self) -> Run:
        """Wait for the end of all, or of one by an error."""

        def is_over() -> bool:
            ended = [each for each in self.all if each.has_ended]
            failed = any(each.code.result() and not each.is_victim for each in ended)
            return failed or all(each.has_ended for each in self.all if each.is_member)

        self.release()
        await self.until(is_over, "the end")
        await asyncio.sleep(0)
        ended = [
            Ended(each.code.result(), each.is_victim, read(each))
            for each in self.all if each.has_ended
        ]  # fmt: skip
        return Run(self._rows, ended)


def read(process: Process) -> str:
    """Return what it printed."""
    return process.output.read_text() if process.output.exists() else ""


def kill(process: Process) -> None:
    """End it at once, unless it has ended."""
    if not process.has_ended:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
