"""A service and agents as real processes, each with a disk of its own: what their scripts find.

The test plays the script's part: it writes the files. The script notes what it found, and writes
by itself where its end is to matter: half of a file, and the rest on a signal of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import psutil
import torch

from ddpjob_operator.local.simulated.processes import kill_all, marked, sweep
from ddpjob_operator.local.simulated.rendezvous_process import free_port
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.messages.control import Expectation, Policy, Report
from support.agents import start_agent
from support.forked import Program
from support.keys import KEY, service_file, worker_file

PATIENCE_SECONDS = 120.0
FILE = "snapshot.pt"
POLICY = Policy(
    settle=0.2,
    heartbeat_deadline=PATIENCE_SECONDS,
    join_policy="Immediate",
    backoff=0.1,
    files=True,
)

SCRIPT = """
    import os, pathlib, time
    here = pathlib.Path(os.environ.get("ROOM", "."))
    note = pathlib.Path("found-" + os.environ["DDPJOB_MEMBERSHIP"])
    found = here / "snapshot.pt"
    note.with_suffix(".new").write_bytes(found.read_bytes() if found.exists() else b"nothing")
    note.with_suffix(".new").rename(note)
    while not pathlib.Path("end").exists():
        time.sleep(0.02)
        if pathlib.Path("save").exists():
            content = pathlib.Path("save").read_bytes()
            with open(found, "wb", buffering=0) as file:
                file.write(content[:1000])
                pathlib.Path("save").rename("half")
                while not pathlib.Path("finish").exists():
                    os.utime(found)  # as if it wrote on, however slow the machine is
                    time.sleep(0.02)
                file.write(content[1000:])
            pathlib.Path("finish").unlink()
"""


def snapshot(step: int, size: int = 1000) -> bytes:
    """Return the bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save({"step": step, "weights": torch.full((size,), float(step))}, file)
    return file.getvalue()


def step_of(content: bytes) -> int | None:
    """Return the step of the file that a script found; None without a file."""
    if content == b"nothing":
        return None
    return int(torch.load(io.BytesIO(content))["step"])


class Worker:
    """An agent with its script, in a working directory of its own."""

    def __init__(self, job: Job, name: str, files: Sequence[str]) -> None:
        self.name = name
        self.folder = job.folder / name
        self.shelf = self.folder / "snapshots"
        self.log = job.folder / f"{name}.log"
        self._job = job
        self.script = SCRIPT
        self._files = files
        self.process: Program

    def start(self, prefix: Sequence[str] = (), **environment: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "script.py").write_text(textwrap.dedent(self.script))
        with self.log.open("ab") as log:
            self.process = start_agent(
                "worker", "--", sys.executable, "script.py",
                folder=self.folder,
                env={
                    **os.environ,
                    "DDPJOB_WORKER": self.name,
                    "DDPJOB_PROCESSES": "1",
                    "DDPJOB_SERVICE": f"127.0.0.1:{self._job.port}",
                    "DDPJOB_KEYS": worker_file(self._job.folder, self.name),
                    "DDPJOB_ADDRESS": "127.0.0.1",
                    "DDPJOB_JOB_UID": self._job.uid,
                    "DDPJOB_SNAPSHOT_DIR": str(self.shelf),
                    "DDPJOB_SNAPSHOT_FILES": json.dumps(self._files),
                    "DDPJOB_TERMINATION_LOG": os.devnull,
                    **environment,
                },
                output=log,
                prefix=prefix,
            )  # fmt: skip

    def write(self, content: bytes, name: str = FILE) -> None:
        """Write as a script does: over the old file, which is lost from the first byte on."""
        (self.folder / name).write_bytes(content)

    async def save_half(self, content: bytes) -> None:
        """Begin to save this; the script continues once there is a file `finish`."""
        (self.folder / "save.new").write_bytes(content)
        (self.folder / "save.new").rename(self.folder / "save")

        async def is_half_done() -> bool:
            return (self.folder / "half").exists()

        await self._job.until(is_half_done, "the script saves")

    def read(self, name: str = FILE) -> bytes:
        return (self.folder / name).read_bytes()

    def found(self, n: int) -> list[bytes]:
        """Return the files that the script of the n-th membership found, once it runs."""
        return [path.read_bytes() for path in self.folder.glob(f"found-*.{n}")]

    def copies(self) -> list[Path]:
        """On its shelf, whole."""
        return sorted(self.shelf.glob(".files/[0-9]*"))

    def processes(self) -> list[psutil.Process]:
        """The agent and its script."""
        found = []
        for process in marked(self._job.uid):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if process.environ().get("DDPJOB_WORKER") == self.name:
                    found.append(process)
        return found

    async def stopped(self) -> None:
        """Wait until its agent has ended the script."""

        async def is_alone() -> bool:
            return len(self.processes()) == 1

        await self._job.until(is_alone, f"the script of {self.name} is ended")

    def kill(self) -> None:
        """Kill the worker, as the end of its node does."""
        kill_all(self.processes())
        self.process.wait()

    def says(self, text: str) -> bool:
        return text in self.log.read_text()


class Job:
    """The service, and the workers that the test makes."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.folder = folder
        self.policy = policy
        self.uid = uuid.uuid4().hex
        self.port = free_port()
        self.client = ServiceClient(connect_directly("127.0.0.1", self.port), KEY.operator)
        self.workers: dict[str, Worker] = {}
        self.report: Report | None = None

    def serve(self) -> None:
        self.service = start_agent(
            "rendezvous", "--host", "127.0.0.1",
            "--port", str(self.port), "--boot-file", str(self.folder / "boots"),
            env={**os.environ, "DDPJOB_KEYS": service_file(self.folder), "DDPJOB_JOB_UID": self.uid},
        )  # fmt: skip

    def worker(self, name: str, files: Sequence[str] = (FILE,)) -> Worker:
        self.workers[name] = Worker(self, name, files)
        return self.workers[name]

    async def expect(self, names: str, draining: str = "") -> None:
        expectation = Expectation(tuple(names.split()), tuple(draining.split()), self.policy)

        async def tell() -> bool:
            await self.client.expect(expectation)
            return True

        await self.until(tell, "the service listens")

    async def begun(self, n: int, names: str) -> list[int | None]:
        """The steps that the scripts of the n-th membership begin from."""
        workers = [self.workers[name] for name in names.split()]

        async def all_found() -> bool:
            return all(worker.found(n) for worker in workers)

        await self.until(all_found, f"membership {n} of {names}")
        contents = [worker.found(n)[0] for worker in workers]
        assert len(set(contents)) == 1, f"not the same bytes: {[step_of(c) for c in contents]}"
        return [step_of(content) for content in contents]

    async def kept(self, since: float = 0.0) -> float:
        """Wait for a copy that is safe, and newer; returns its time."""

        async def newer() -> bool:
            self.report = await self.client.report()
            return bool(self.report.files and (self.report.files.synced_at or 0.0) > since)

        await self.until(newer, "a copy is safe")
        assert self.report is not None
        assert self.report.files is not None
        assert self.report.files.synced_at is not None
        return self.report.files.synced_at

    async def formed(self, n: int) -> None:
        """Wait until the service has formed the n-th membership, with any workers."""

        async def is_formed() -> bool:
            return await self.newest() >= n

        await self.until(is_formed, f"membership {n} is formed")

    async def begun_together(self, names: str) -> list[int | None]:
        """The same of the first membership in which the scripts of all of them run."""
        workers = [self.workers[name] for name in names.split()]

        async def common() -> bool:
            last = await self.newest()
            return any(all(w.found(n) for w in workers) for n in range(1, last + 1))

        await self.until(common, f"a membership of {names}")
        first = next(n for n in range(1, 1000) if all(w.found(n) for w in workers))
        return await self.begun(first, names)

    async def newest(self) -> int:
        """The number of the newest membership."""
        self.report = await self.client.report()
        return self.report.membership.id.round if self.report.membership else 0

    async def tells(self, trouble: str) -> bool:
        """Return whether the service reports this trouble."""
        self.report = await self.client.report()
        told = [f"{each.worker}: {each.message}" for each in self.report.warnings]
        return any(each.startswith(trouble) for each in told) if trouble else not told

    async def fails(self, summary: str) -> bool:
        """Return whether this was blamed for a failure."""
        self.report = await self.client.report()
        return bool(self.report.failure and self.report.failure.summary.startswith(summary))

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(ServiceUnavailableError):
                if await condition():
                    return
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"never: {what}\n{self.story()}")
            await asyncio.sleep(0.02)

    def story(self) -> str:
        logs = (f"--- {each.name}\n{each.log.read_text()}" for each in self.workers.values())
        return "\n".join((str(self.report), *logs))


@contextlib.asynccontextmanager
async def keeping(
    folder: Path, names: str, policy: Policy = POLICY, *, start: bool = True
) -> AsyncIterator[Job]:
    """A job of these workers; unless `start` is False, it has started."""
    job = Job(folder, policy)
    job.serve()
    try:
        await job.expect(names)
        for name in names.split():
            worker = job.worker(name)
            if start:
                worker.start()
        if start:
            assert set(await job.begun(1, names)) == {None}
        yield job
    finally:
        sweep(job.uid)
        for worker in job.workers.values():
            if hasattr(worker, "process"):
                worker.process.wait()
        job.service.wait()
