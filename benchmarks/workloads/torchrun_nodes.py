"""Torchrun's own rendezvous handler, many in one process, for a benchmark.

Each participant is a thread with a store client of its own. Commands and answers are lines of JSON.

    {"do": "connect", "ports": [...], "run": ID, "total": N}   Connect a participant to each port.
    {"do": "rendezvous"}   Let all join; answer with the times at which each had its rank.
    {"do": "bytes", "port": PORT}   Answer with the bytes between the participants and the port.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as an agent starts torchrun
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"

import torch.distributed as dist
from benchmarks.tcp_bytes import bytes_with
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
)

LIMIT = timedelta(seconds=600)


class Nodes:
    """The participants of this process."""

    def __init__(self) -> None:
        self._handlers: list[DynamicRendezvousHandler] = []

    def connect(self, ports: list[int], run: str, total: int) -> None:
        """Make a handler for each port."""
        with ThreadPoolExecutor(8) as pool:
            self._handlers = list(pool.map(lambda port: _handler(port, run, total), ports))

    def rendezvous(self) -> list[Any]:
        """Let all handlers join at once; return when each had its rank, and the ranks."""
        at = [0.0] * len(self._handlers)
        ranks = [-1] * len(self._handlers)
        failed: list[str] = []

        def join(number: int, handler: DynamicRendezvousHandler) -> None:
            try:
                ranks[number] = handler.next_rendezvous().rank
            except Exception as error:  # noqa: BLE001 - reported below
                failed.append(repr(error))
            at[number] = time.monotonic()

        threads = [
            threading.Thread(target=join, args=each, daemon=True)
            for each in enumerate(self._handlers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [at, ranks, failed]


def _handler(port: int, run: str, total: int) -> DynamicRendezvousHandler:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LIMIT)
    backend = C10dRendezvousBackend(store, run)
    timeout = RendezvousTimeout(join=LIMIT)
    handler: DynamicRendezvousHandler = DynamicRendezvousHandler.from_backend(
        run, store, backend, total, total, local_addr="127.0.0.1", timeout=timeout
    )
    return handler


def main() -> None:
    """Obey the commands until stdin ends."""
    nodes = Nodes()
    for line in sys.stdin:
        command = json.loads(line)
        answer: Any = None
        if command["do"] == "connect":
            nodes.connect(command["ports"], command["run"], command["total"])
        elif command["do"] == "rendezvous":
            answer = nodes.rendezvous()
        else:
            answer = bytes_with(command["port"])
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the handlers still send heartbeats


if __name__ == "__main__":
    main()
