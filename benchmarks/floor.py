"""The physical limit of a cold start, measured: nothing but Python, torch and two processes.

From starting two fresh processes at once to the first step that both have completed: the import of
torch, `init_process_group`, DDP and the step itself. No launcher, no rendezvous, no detection.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.steps import first_group
from benchmarks.stock import Processes
from benchmarks.trials import NODES, PATIENCE_SECONDS, TrialError

from ddpjob_operator.local.service import free_port

POLL_SECONDS = 0.05


async def cold_start() -> float:
    """Seconds for as many processes as survive the loss of one node."""
    world = NODES - 1
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        processes = Processes(folder)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        try:
            started = time.time()
            for rank in range(world):
                ranks = {"RANK": str(rank), "WORLD_SIZE": str(world)}
                await processes.start("step_forever.py", folder, **meeting, **ranks)
            while (group := first_group(folder, world, after=started)) is None:
                if time.time() > started + PATIENCE_SECONDS:
                    raise TrialError("two plain processes do not form a group")
                await asyncio.sleep(POLL_SECONDS)
            return group.stepped - started
        finally:
            await processes.stop()
