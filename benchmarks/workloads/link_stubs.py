"""Agents that are connections only, many in one process, for the benchmark of the link.

Each registers, sends a heartbeat every second, and records the time of each order. It decodes no
order. Each command is a line of JSON on stdin; each answer is a line of JSON on stdout.

    {"do": "join", "names": [...]}   Connect these workers.
    {"do": "steps", "rate": R}       Report R steps a second each; 0 for none.
    {"do": "kill", "name": NAME}     Close this connection, as the kernel does for a killed process.
    {"do": "count"}                  Answer with the heartbeats answered and the steps sent so far.
    {"do": "wait", "round": N}       Wait for the order of the N-th membership, or of a later one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from ddpjob_agent.net.framing import TAG_BYTES, Connection, connect
from ddpjob_agent.net.sockets.descriptors import raise_limit
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.messages.agent import PROTOCOL

SLICES = 20  # of a second: in each, another part of the stubs sends
BEAT = b'{"type":"beat"}'
AT_ONCE = 64  # handshakes
ROUND = re.compile(rb'"id":"([0-9.]+)\.([0-9]+)"')


class Stub:
    """One agent without processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: Connection | None = None
        self.membership, self.round = "", 0
        self.ordered_at = 0.0
        self.order_bytes = 0  # of the newest order
        self.answered = 0  # heartbeats
        self.step = 0
        self.changed = asyncio.Event()
        self.reading: asyncio.Task[None] | None = None

    async def join(self, port: int, key: JobKey, gate: asyncio.Semaphore) -> None:
        """Connect and register."""
        async with gate:
            self.connection = await connect("127.0.0.1", port, key.worker_keys(self.name).own, 60)
        member = {
            "worker": self.name, "incarnation": os.urandom(16).hex(), "address": "10.128.100.100",
            "processes": 8,
        }  # fmt: skip
        self.connection.send({
            "type": "hello", "protocol": PROTOCOL, "member": member, "membership": None,
            "running": False, "live": False, "ready": False, "finished": False, "stops": False,
            "done": False, "failure": None, "reports": [], "entries": [],
            "port": 41234, "reach": 42345,
        })  # fmt: skip
        self.reading = asyncio.ensure_future(self._read(self.connection))

    async def _read(self, connection: Connection) -> None:
        buffer = bytearray()
        while data := await connection.receive_bytes(1 << 20):
            buffer += data
            while len(buffer) >= 4:
                end = 4 + int.from_bytes(buffer[:4], "big") + TAG_BYTES
                if len(buffer) < end:
                    break
                self._on_frame(bytes(buffer[4 : min(end, 200)]), end)
                del buffer[:end]
        self.connection = None

    def _on_frame(self, start: bytes, size: int) -> None:
        self.answered += start[:-TAG_BYTES] == BEAT
        if start.startswith(b'{"type":"run"') and (found := ROUND.search(start)):
            before, number = found[1].decode(), int(found[2])
            self.membership, self.round = f"{before}.{number}", number
            self.ordered_at, self.order_bytes = time.monotonic(), size
            self.changed.set()

    def beat(self) -> None:
        """Send a heartbeat, as an agent does every second."""
        if self.connection:
            self.connection.send({"type": "beat", "processes": []})

    def report(self) -> None:
        """Report a step."""
        self.step += 1
        if self.connection:
            event = {"event": "step", "step": self.step, "total": 10**9, "metrics": {"loss": 0.5}}
            message = {"type": "report", "membership": self.membership, "report": event}
            self.connection.send(message)

    async def until(self, number: int) -> None:
        """Wait for the order of this membership or a later one."""
        while self.round < number:
            self.changed.clear()
            await self.changed.wait()


class Stubs:
    """All stubs of this process."""

    def __init__(self, port: int, key: JobKey) -> None:
        self._port = port
        self._key = key
        self._stubs: dict[str, Stub] = {}
        self._rate = 0
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def send(self) -> None:
        """Send heartbeats and steps, evenly over each second."""
        began, number = time.monotonic(), 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began + number / SLICES - time.monotonic()))
            stubs = list(self._stubs.values())
            for stub in stubs[number % SLICES :: SLICES]:
                stub.beat()
            if self._rate:
                every = SLICES // self._rate
                for stub in stubs[number % every :: every]:
                    stub.report()

    async def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """Obey one command and return the answer."""
        kind = command["do"]
        if kind == "join":
            new = [Stub(name) for name in command["names"]]
            await asyncio.gather(*(stub.join(self._port, self._key, self._gate) for stub in new))
            self._stubs.update((stub.name, stub) for stub in new)
        elif kind == "steps":
            self._rate = command["rate"]
        elif kind == "kill":
            stub = self._stubs.pop(command["name"])
            at = time.monotonic()
            assert stub.connection
            stub.connection.close()
            return {"at": at}
        elif kind == "count":
            stubs = list(self._stubs.values())
            return {
                "beats": sum(stub.answered for stub in stubs),
                "steps": sum(stub.step for stub in stubs),
            }
        else:
            stubs = list(self._stubs.values())
            await asyncio.gather(*(stub.until(command["round"]) for stub in stubs))
            return {
                "at": [stub.ordered_at for stub in stubs],
                "bytes": sum(stub.order_bytes for stub in stubs),
                "closed": [stub.name for stub in stubs if stub.connection is None],
            }
        return {}


async def main(key: JobKey) -> None:
    """Obey the commands until stdin ends."""
    raise_limit()
    stubs = Stubs(int(sys.argv[1]), key)
    reader = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sending = asyncio.ensure_future(stubs.send())
    while line := await reader.readline():
        print(json.dumps(await stubs.do(json.loads(line))), flush=True)
    sending.cancel()


if __name__ == "__main__":
    asyncio.run(main(JobKey.parse(Path(os.environ["DDPJOB_KEYS"]).read_text())))
