"""Groups that break at random points of a step, on a device that fails late and silently."""

from __future__ import annotations

import asyncio
import collections
import os
import random
from pathlib import Path

from support.conducting import conducting, until
from support.forked import Forks, Program
from support.ledger import Ledger

BREAKS = int(os.environ.get("DDPJOB_BREAKS", "40"))
PROCESSES = 2
STEP_SECONDS = 0.01  # at most, by which a rank is later than the others

SCRIPT = f"""
import hashlib, json, os, random, socket, time, torch
from ddpjob_trainer import Loop
from support import async_group

torch.set_num_threads(1)
device = async_group.register()
ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ledger.connect("ledger.sock")
torch.manual_seed(os.getpid())
net = torch.nn.Linear(8, 8)
optimizer = async_group.LateSGD(device, net.parameters(), 0.01)
loop = Loop(net, optimizer, steps=10**6, gradient_as_bucket_view=True)
for step in loop:
    with step:
        numbers = torch.Generator().manual_seed(step.number)
        batch = torch.randn(4, 8, generator=numbers)[step.rank :: step.world_size]
        optimizer.zero_grad()
        loss = loop.model(batch).square().mean()
        time.sleep(random.random() * {STEP_SECONDS} * (random.random() < 0.5))
        loss.backward()
        optimizer.step()
        device.synchronize()  # as loss.item() does: it raises nothing
    if step.done:
        state = torch.cat([each.flatten() for each in net.parameters()]).detach()
        digest = hashlib.sha256(state.numpy().tobytes()).hexdigest()
        row = (os.environ["DDPJOB_MEMBERSHIP"], "done", step.number, step.rank, step.world_size,
               os.getpid(), digest)
        ledger.send(json.dumps(row).encode())
"""


async def break_at_random(forks: Forks, folder: Path, env: dict[str, str], ledger: Ledger) -> None:
    chance = random.Random(7)
    started: list[Program] = []
    async with conducting(folder, env, PROCESSES) as agent:
        try:
            for rank in range(PROCESSES):
                process_env = agent.process_env(rank)
                started.append(forks.start("train.py", env=process_env, folder=folder))
            for n in range(1, BREAKS + 2):
                agent.assign(n)
                await until(lambda n=n: has_done(ledger, n), f"steps in membership {n}")  # type: ignore[misc]
                await asyncio.sleep(chance.random() * 5 * STEP_SECONDS)  # the point of the break
            agent.end()
            codes = await asyncio.gather(*(asyncio.to_thread(p.wait) for p in started))
            assert codes == [0] * PROCESSES
        finally:
            for process in started:
                process.kill()


def has_done(ledger: Ledger, n: int) -> bool:
    rows = [row for row in ledger.rows() if row.membership == f"1.1.{n}"]
    return len({row.rank for row in rows}) == PROCESSES


def test_replicas_are_equal_after_every_break(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ledger = Ledger(tmp_path)
    try:
        asyncio.run(break_at_random(forks, tmp_path, python_env, ledger))
    finally:
        ledger.close()
    states = collections.defaultdict(set)
    for row in ledger.rows():
        states[row.membership, row.step].add(row.value)
    assert all(len(values) == 1 for values in states.values()), "replicas differ"
    assert len({membership for membership, _ in states}) == BREAKS + 1
    steps = sorted(step for _, step in states)
    assert {*range(steps[-1] + 1)} == {*steps}, "no step is left out"
