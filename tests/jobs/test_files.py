"""Level L0 without shared storage: a plain torchrun script whose rank 0 alone saves a file."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import Ledger, Row
from support.own_disks import OwnDisks

SCRIPT = """
    import json, os, pathlib, socket, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger.connect("../ledger.sock")
    end = pathlib.Path(sys.argv[1])

    def tell(what, step):
        facts = (dist.get_rank(), dist.get_world_size(), os.getpid(), "")
        ledger.send(json.dumps((os.environ["DDPJOB_MEMBERSHIP"], what, step, *facts)).encode())

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net, step, seen = torch.nn.Linear(4, 1), 0, torch.zeros(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if os.path.exists("snapshot.pt"):
        state = torch.load("snapshot.pt")
        net.load_state_dict(state["net"])
        step = state["step"]
    tell("begun", step)
    model = DistributedDataParallel(net)
    while not seen.item():
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).pow(2).mean().backward()
        optimizer.step()
        step += 1
        tell("done", step)
        if step % 20 == 0 and dist.get_rank() == 0:
            torch.save({"net": net.state_dict(), "step": step}, "snapshot.pt")
            tell("saved", step)
        time.sleep(0.1)
    dist.barrier()
    os._exit(0)  # torch now and then aborts a process that has finished (docs/failures.md)
"""
SPEC = {
    "replicas": 2,
    "processesPerWorker": 2,
    "elastic": "{joinPolicy: Auto, settleSeconds: 0.2, minSecondsBetweenJoins: 100000}",
    "snapshot": "{files: [snapshot.pt]}",
}


def rows(ledger: Ledger, n: int, what: str) -> list[Row]:
    found = ledger.rows()
    return [row for row in found if row.what == what and row.membership.endswith(f".{n}")]


async def begun(run: Run, ledger: Ledger, n: int, world: int) -> int:
    """The step from which all ranks of the n-th membership go on."""
    await run.until(lambda: len(rows(ledger, n, "begun")) == world, f"membership {n} begins")
    steps = {row.rank: row.step for row in rows(ledger, n, "begun")}
    assert sorted(steps) == list(range(world))
    assert len(set(steps.values())) == 1, steps
    return steps[0]


def kept_on(disk: Path) -> list[int]:
    """Steps of the copies that lie there."""
    return [torch.load(path / "0")["step"] for path in disk.glob("snapshots/.files/[0-9]*")]


def node_of_rank_0(run: Run, ledger: Ledger, n: int) -> str:
    pid = next(row.pid for row in rows(ledger, n, "begun") if row.rank == 0)
    above = {parent.pid for parent in psutil.Process(pid).parents()}
    pods = run.backend.nodes.pods.values()
    return next(p.node for p in pods if p.node and p.process and p.process.pid in above)


@two_at_once
async def test_node_with_the_file_is_killed_and_a_new_one_joins(tmp_path: Path) -> None:
    """Nobody else's script ever saved; still all go on from the last whole file, and together."""
    text, disks = job_text("[torchrun, ../train.py, ../end]", **SPEC), OwnDisks(tmp_path)
    ledger = Ledger(tmp_path)
    try:
        async with running(tmp_path, text, 2, SCRIPT, disks) as run:
            assert await begun(run, ledger, 1, world=4) == 0
            victim = node_of_rank_0(run, ledger, 1)
            (other,) = {"node-0", "node-1"} - {victim}
            await run.until(lambda: bool(run.report.files), "a copy is safe")
            safe = max(kept_on(disks.disk(other)))
            run.backend.nodes.kill(victim)
            step = await begun(run, ledger, 2, world=2)
            assert step >= safe > 0
            assert step in {row.step for row in rows(ledger, 1, "saved")}
            run.backend.nodes.add()
            joined = await begun(run, ledger, 3, world=4)
            saved = {row.step for row in rows(ledger, 2, "saved")}
            assert joined in saved, "it came in after the next save, and with that"
            assert [cause for cause, _ in run.history()] == ["started", "lost", "joined"]
            await run.until(lambda: bool(rows(ledger, 3, "done")), "it trains")
            assert await run.finish() == "Complete", run.story()
            assert run.report.failures == 0
    finally:
        ledger.close()
