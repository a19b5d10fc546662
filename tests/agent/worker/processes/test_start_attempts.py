"""Faults of a moment at a start are retried; the others fail the job, or cost a restart."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.service.serving import Job, run, until
from ddpjob_agent.worker.processes.start_attempts import (
    PAUSES_SECONDS,
    start_failure,
    start_with_retries,
)
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_protocol.messages.control import ServiceState
from support.keys import worker_file

if TYPE_CHECKING:
    from pathlib import Path

RETRIED = ("EAGAIN", "ENOMEM", "EMFILE", "ENFILE", "ETXTBSY", "EINTR")
PERMANENT = ("ENOENT", "EACCES", "ENOEXEC")
COUNTED = ("ENOSPC", "EIO", "ESTALE", "EPERM", "E2BIG")


def fault(name: str) -> OSError:
    number = getattr(errno, name)
    return OSError(number, os.strerror(number))


class Starts:
    """Attempts that fail with these faults, and then succeed."""

    def __init__(self, *faults: OSError, wanted_pauses: int = 99) -> None:
        self.faults = list(faults)
        self.pauses: list[float] = []
        self.delays: list[OSError] = []
        self._wanted_pauses = wanted_pauses

    async def start(self) -> None:
        if self.faults:
            raise self.faults.pop(0)

    async def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return len(self.pauses) <= self._wanted_pauses

    def run(self) -> bool:
        attempts = start_with_retries(self.start, self.pause, self.delays.append)
        return asyncio.run(attempts)


@pytest.mark.parametrize("name", RETRIED)
def test_a_fault_of_a_moment_is_retried_and_told_once(name: str) -> None:
    first = fault(name)
    starts = Starts(first, fault("EAGAIN"))
    assert starts.run()
    assert starts.pauses == list(PAUSES_SECONDS[:2])
    assert starts.delays == [first]


@pytest.mark.parametrize("name", [*PERMANENT, *COUNTED])
def test_another_fault_is_not_retried(name: str) -> None:
    starts = Starts(fault(name))
    with pytest.raises(OSError, match=os.strerror(getattr(errno, name))):
        starts.run()
    assert starts.pauses == []
    assert starts.delays == []


def test_the_attempts_end() -> None:
    starts = Starts(*(fault("EAGAIN") for _ in range(50)))
    with pytest.raises(BlockingIOError):
        starts.run()
    assert starts.pauses == list(PAUSES_SECONDS)
    assert sum(starts.pauses) < 20


def test_a_start_that_is_not_wanted_any_more_is_given_up() -> None:
    starts = Starts(*(fault("EAGAIN") for _ in range(50)), wanted_pauses=2)
    assert not starts.run()
    assert len(starts.pauses) == 3


@pytest.mark.parametrize("name", [*RETRIED, *PERMANENT, *COUNTED])
def test_only_a_command_that_cannot_exist_ends_the_job(name: str) -> None:
    failure = start_failure("a cannot start 'x'", fault(name), 5.0)
    assert failure.permanent == (name in PERMANENT)
    head = f"a cannot start 'x': {os.strerror(getattr(errno, name))}; "
    assert failure.summary.startswith(head)
    assert failure.summary != head, "with a remedy"
    assert failure.exit_code == 127


def test_a_fault_without_a_number_is_counted() -> None:
    failure = start_failure("a cannot start 'x'", OSError("no answer"), 5.0)
    assert not failure.permanent
    assert "no answer" in failure.summary


def test_an_agent_without_descriptors_starts_a_moment_later(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        agent = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [sys.executable, "-m", "ddpjob_agent", "worker", "--", "true"],
            env={
                **os.environ, "DDPJOB_KEYS": worker_file(tmp_path, "a"), "DDPJOB_WORKER": "a",
                "DDPJOB_SERVICE": f"127.0.0.1:{job.service.port}", "DDPJOB_ADDRESS": "127.0.0.1",
                "DDPJOB_PROCESSES": "1", "DDPJOB_LAUNCHER": "python",
            },
        )  # fmt: skip

        async def registered() -> None:
            if (await job.report()).workers != ("a",):
                raise ServiceUnavailableError("not registered")

        async def delayed() -> None:
            found = [(each.reason, each.worker) for each in (await job.report()).warnings]
            if found != [("StartDelayed", "a")]:
                raise ServiceUnavailableError(str(found))

        async def complete() -> None:
            if (await job.report()).state is not ServiceState.COMPLETE:
                raise ServiceUnavailableError("not complete")

        try:
            await until(registered)
            _, hard = limits = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (0, hard))
            await job.expect("a")
            await until(delayed)
            resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
            await until(complete)
            assert (await job.report()).failures == 0
        finally:
            agent.kill()
            agent.wait()

    run(body, tmp_path)
