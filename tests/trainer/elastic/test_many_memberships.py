"""Many changes of membership in the same processes: nothing piles up."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from pathlib import Path
from typing import Any

from support.conducting import conducting, until
from support.forked import Forks, Program
from support.ledger import Ledger

MEMBERSHIPS = int(os.environ.get("DDPJOB_CHANGES", "50"))
SETTLED = MEMBERSHIPS // 5  # from then on nothing may grow
AT_WORK = 4  # of an earlier membership not closed yet; what piles up comes to thirty and more
GROWTH = 1 + MEMBERSHIPS / 4000  # of the memory that is resident: 0.2 MB for each at most
PROCESSES = 2

SCRIPT = """
import json, os, pathlib, socket, sys, torch
from ddpjob_trainer import Loop

def facts():
    status = pathlib.Path("/proc/self/status").read_text().split()
    return json.dumps({
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(status[status.index("Threads:") + 1]),
        "kilobytes": int(status[status.index("VmRSS:") + 1]),
        "shared memory": len(list(pathlib.Path("/dev/shm").glob(f"*{os.getpid()}*"))),
    })

torch.set_num_threads(1)
ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ledger.connect("ledger.sock")
net = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loop = Loop(net, optimizer, steps=10**6)
told = None
for step in loop:
    with step:
        optimizer.zero_grad()
        loop.model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()
    membership = os.environ["DDPJOB_MEMBERSHIP"]
    if step.done and membership != told:
        told = membership
        row = (membership, "done", step.number, step.rank, step.world_size, os.getpid(), facts())
        ledger.send(json.dumps(row).encode())
"""


async def go_through_all(forks: Forks, folder: Path, env: dict[str, str], ledger: Ledger) -> None:
    processes: list[Program] = []

    def in_membership(n: int) -> bool:
        assert all(process.poll() is None for process in processes)
        return sum(row.membership == f"1.1.{n}" for row in ledger.rows()) == PROCESSES

    async with conducting(folder, env, PROCESSES) as agent:
        try:
            for rank in range(PROCESSES):
                own = agent.process_env(rank)
                processes.append(forks.start("train.py", env=own, folder=folder))
            for n in range(1, MEMBERSHIPS + 1):
                agent.assign(n)
                await until(lambda n=n: in_membership(n), f"both in membership {n}")  # type: ignore[misc]
            agent.end()
            codes = [await asyncio.to_thread(process.wait) for process in processes]
            assert codes == [0] * PROCESSES
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()


def test_nothing_piles_up_over_many_memberships(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ledger = Ledger(tmp_path)
    try:
        asyncio.run(go_through_all(forks, tmp_path, python_env, ledger))
    finally:
        ledger.close()
    for pid in {row.pid for row in ledger.rows()}:
        course: list[dict[str, Any]] = [
            json.loads(row.value) for row in ledger.rows() if row.pid == pid
        ]
        assert len(course) == MEMBERSHIPS
        steps = [row.step for row in ledger.rows() if row.pid == pid]
        assert steps == sorted(steps), "no step is done twice"

        def typical(name: str, rows: list[dict[str, Any]]) -> float:
            return float(statistics.median(row[name] for row in rows))

        early, late = course[SETTLED : 2 * SETTLED], course[-SETTLED:]
        for name in ("descriptors", "threads", "shared memory"):
            assert typical(name, late) <= typical(name, early) + AT_WORK, name
        assert typical("kilobytes", late) <= GROWTH * typical("kilobytes", early)
