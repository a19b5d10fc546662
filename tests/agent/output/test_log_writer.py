"""A log that nothing reads delays no agent; what it lacks is counted, and nothing else is lost."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from agent.service.serving import IMPATIENT, Job, run, until
from ddpjob_agent.output.log_writer import LogWriter
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_protocol.messages.control import ServiceState
from support.keys import worker_file

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1 << 20
NOTE = re.compile(rb"\nddpjob: ([0-9]+) bytes of output are missing here, [a-z ]+\n")


class Pipe:
    """A pipe with a writer of a log, and a reader that starts late."""

    def __init__(self) -> None:
        self._reader, self._end = os.pipe()
        self.log = LogWriter(LIMIT)
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while data := os.read(self._reader, 65536):
            self._pieces.append(data)

    def write(self, line: bytes) -> None:
        self.log.write(self._end, line)

    def start_reading(self) -> None:
        self._thread.start()

    def close(self) -> bytes:
        """Return all that was read."""
        assert self.log.flush(60)
        os.close(self._end)
        self._thread.join()
        os.close(self._reader)
        return b"".join(self._pieces)


def lines(count: int, first: int = 0) -> list[bytes]:
    return [b"line %06d %s\n" % (number, b"x" * 90) for number in range(first, first + count)]


def test_nothing_is_lost_while_the_reader_reads() -> None:
    pipe = Pipe()
    pipe.start_reading()
    written = lines(30_000)
    for line in written:
        while pipe.log.is_behind:
            pipe.log.flush(0.001)
        pipe.write(line)
    assert pipe.close() == b"".join(written)


def test_what_does_not_fit_is_counted_in_one_line() -> None:
    pipe = Pipe()
    written, later = lines(20_000), lines(10, first=900_000)
    for line in written:
        pipe.write(line)
    assert not pipe.log.is_behind, "what is dropped delays nothing"
    pipe.start_reading()
    assert pipe.log.flush(60)
    for line in later:
        pipe.write(line)
    before, missing, after = NOTE.split(pipe.close())
    assert after == b"".join(later)
    assert b"".join(written).startswith(before)
    assert len(before) + int(missing) == sum(map(len, written))
    assert len(before) >= LIMIT // 2


def test_a_broken_pipe_is_no_error() -> None:
    reader, end = os.pipe()
    os.close(reader)
    log = LogWriter(LIMIT)
    log.write(end, b"x")
    assert log.flush(60)
    os.close(end)


FORKS = """
import os
from ddpjob_agent.output.log_writer import LOG
LOG.write(1, b"parent\\n")
assert LOG.flush()
if os.fork() == 0:
    LOG.write(1, b"child\\n")
    os._exit(not LOG.flush())
assert os.wait()[1] == 0
"""


def test_a_forked_process_writes_its_own_lines_only() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, check=True, timeout=60
    )
    assert ended.stdout == b"parent\nchild\n"


def test_an_agent_whose_log_nothing_reads_works(tmp_path: Path) -> None:
    """The command floods stderr; the agent's own lines go to the same full pipe."""
    flood = "import sys; [print('x' * 1000, file=sys.stderr) for _ in range(20000)]"

    async def body(job: Job) -> None:
        reader, end = os.pipe()
        agent = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            [sys.executable, "-m", "ddpjob_agent", "worker", "--", sys.executable, "-c", flood],
            stdout=end,
            stderr=end,
            env={
                **os.environ, "DDPJOB_KEYS": worker_file(tmp_path, "a"), "DDPJOB_WORKER": "a", "DDPJOB_PROCESSES": "1",
                "DDPJOB_SERVICE": f"127.0.0.1:{job.service.port}", "DDPJOB_ADDRESS": "127.0.0.1",
                "DDPJOB_LAUNCHER": "python",
            },
        )  # fmt: skip
        os.close(end)

        async def complete() -> None:
            if (await job.report()).state is not ServiceState.COMPLETE:
                raise ServiceUnavailableError("not complete")

        try:
            await job.expect("a", policy=IMPATIENT)
            await until(complete)
            found = await job.report()
            assert [each.cause for each in found.memberships] == ["started"], "it was never lost"
            assert await asyncio.to_thread(agent.wait, 60) == 0, "the end waits for no reader"
        finally:
            agent.kill()
            agent.wait()
            os.close(reader)

    run(body, tmp_path)
