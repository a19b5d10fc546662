"""Our c10d store in a process of its own, for tests: torch holds the GIL in some client calls.

A line on stdin starts a fresh store, whose port is printed; the next line stops it, and what
went wrong is printed: exceptions that escaped, tasks and waits that were left over.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Store


class Server:
    """One store on a free loopback port."""

    def __init__(self) -> None:
        self.port = 0
        self._backend = StoreBackend(Store())
        self._errors: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._clients: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._own = asyncio.all_tasks()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self._errors.append(repr(context))
        )
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> list[str]:
        self._server.close()
        for writer in self._writers:
            writer.close()
        if self._clients:
            await asyncio.wait(self._clients)
        left = [*(asyncio.all_tasks() - self._own), *self._backend._waiters]
        return self._errors + [f"left over: {item!r}" for item in left]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        self._writers.append(writer)
        await serve_client(reader, writer, self._backend)


def say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        server = Server()
        await server.start()
        say(server.port)
        await loop.run_in_executor(None, sys.stdin.readline)
        say(await server.stop())


if __name__ == "__main__":
    asyncio.run(main())
