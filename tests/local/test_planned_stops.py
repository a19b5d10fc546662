"""Level L1: a planned change waits for the end of a step, which is saved; it costs no step.

By a ledger outside of the processes. No snapshot is due but those of the agreed steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from ddpjob_agent.agent import LEAVE_SECONDS, RESERVE_SECONDS
from ddpjob_agent.contract import GRACE_SECONDS
from driving import Run, in_background, job_text, running
from ledger import Ledger

SCRIPT = """
    import json, os, pathlib, socket, sys, time
    import torch, torch.distributed as dist
    from ddpjob_trainer import Snapshots, step_done

    ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger.connect("ledger.sock")
    end = pathlib.Path(sys.argv[1])

    def tell(what, step):
        facts = (dist.get_rank(), dist.get_world_size(), os.getpid(), "")
        ledger.send(json.dumps((os.environ["DDPJOB_MEMBERSHIP"], what, step, *facts)).encode())

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer)
    step, seen = loaded.step if loaded else 0, torch.zeros(1)
    while not seen.item():
        tell("begun", step)
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        time.sleep(0.02)
        while pathlib.Path("stuck").exists():
            pathlib.Path("is-stuck").touch()
            time.sleep(0.1)
        tell("done", step)
        step += 1
        step_done(step, 1_000_000)
        if snapshots.due(step):
            snapshots.save(step, model=model, optimizer=optimizer)
    dist.barrier()
    dist.destroy_process_group()
"""
RESERVED = LEAVE_SECONDS + RESERVE_SECONDS  # seconds of the grace period in which nobody waits
SPEC = {
    "elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}",
    "snapshot": "{everySteps: 1000000}",
    "processesPerWorker": 2,
}


@contextlib.asynccontextmanager
async def saving(
    folder: Path, nodes: int, script: str = SCRIPT, grace: float = GRACE_SECONDS, **spec: object
) -> AsyncIterator[tuple[Run, Ledger]]:
    """A job whose every process asks after each step whether it is the last one."""
    ledger = Ledger(folder)
    try:
        text = job_text("[torchrun, train.py, end]", **{"replicas": nodes, **SPEC, **spec})
        async with running(folder, text, nodes=nodes, script=script) as run:
            run.backend.nodes.grace_seconds = grace
            await run.until_stepping(1, steps=2)
            yield run, ledger
    finally:
        ledger.close()


def check(ledger: Ledger, memberships: int) -> None:
    """Every step was done once, by all, and none was begun in vain."""
    courses = ledger.courses()
    assert len(courses) == memberships, courses
    assert [a.done for a in courses[:-1]] == [b.first for b in courses[1:]], courses
    assert not any(ledger.void_steps()), courses


def pid_of_rank_0(ledger: Ledger) -> int:
    return next(row.pid for row in ledger.rows() if row.rank == 0)


def node_of(run: Run, pid: int) -> str:
    """Of a process."""
    above = {parent.pid for parent in psutil.Process(pid).parents()}
    pods = run.backend.nodes.pods.values()
    return next(p.node for p in pods if p.node and p.process and p.process.pid in above)


@in_background
async def test_drained_joined_and_drained_again(tmp_path: Path) -> None:
    """The node with rank 0 goes first, then one that came later."""
    async with saving(tmp_path, 2) as (run, ledger):
        run.backend.nodes.drain("node-0")
        await run.until_stepping(2, steps=2)
        run.backend.nodes.add()
        await run.until_stepping(3, steps=2)
        run.backend.nodes.drain("node-2")
        await run.until_stepping(4)
        assert run.history() == [("started", 4), ("left", 2), ("joined", 4), ("left", 2)]
        assert await run.finish() == "Complete", run.story()
        check(ledger, 4)


@in_background
async def test_steps_that_take_long(tmp_path: Path) -> None:
    """In so much time torchrun looks at its store many times; it must find it."""
    script = SCRIPT.replace("time.sleep(0.02)", "time.sleep(1.5)")
    async with saving(tmp_path, 2, script) as (run, ledger):
        run.backend.nodes.drain("node-0")
        await run.until_stepping(2, steps=2)
        run.backend.nodes.add()
        await run.until_stepping(3)
        assert run.history() == [("started", 4), ("left", 2), ("joined", 4)]
        assert await run.finish() == "Complete", run.story()
        check(ledger, 3)


@in_background
async def test_a_snapshot_that_takes_long(tmp_path: Path) -> None:
    """Rank 0 leaves; the others wait until it has written what they go on from."""
    slow = """
    from ddpjob_trainer import folder
    write = folder.write
    folder.write = lambda *what: (time.sleep(2), write(*what))
    """
    script = SCRIPT.replace("    ledger =", f"{slow}\n    ledger =", 1)
    async with saving(tmp_path, 2, script) as (run, ledger):
        run.backend.nodes.drain(node_of(run, pid_of_rank_0(ledger)))
        await run.until_stepping(2)
        assert run.history() == [("started", 4), ("left", 2)]
        assert await run.finish() == "Complete", run.story()
        check(ledger, 2)


@in_background
async def test_stopped_and_continued(tmp_path: Path) -> None:
    """All workers are told to go at once, as when a job is suspended or deleted."""
    async with saving(tmp_path, 2) as (run, ledger):
        run.backend.stop()
        await run.task
        (before,) = ledger.courses()
    (tmp_path / "ledger.sock").unlink()
    async with saving(tmp_path, 2) as (run, ledger):
        assert await run.finish() == "Complete", run.story()
        (after,) = ledger.courses()
        assert after.first == before.done > 0


@in_background
async def test_node_killed_while_the_others_wait_for_the_agreed_step(tmp_path: Path) -> None:
    """The step cannot be done any more; nobody waits for it."""
    async with saving(tmp_path, 3) as (run, _):
        run.backend.nodes.drain("node-1")
        run.backend.nodes.kill("node-2")
        await run.until(lambda: run.history()[-1][1] == 2, "one worker is left")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "it steps")
        assert await run.finish() == "Complete", run.story()


@in_background
async def test_a_step_that_outlasts_the_grace_period(tmp_path: Path) -> None:
    """The processes are ended in time, people are told, and the others go on."""
    stuck = tmp_path / "stuck"
    async with saving(tmp_path, 2, grace=RESERVED + 2) as (run, _):
        await run.until(lambda: (run.report.step or 0) > 5, "all processes ask after each step")
        stuck.touch()
        await run.until((tmp_path / "is-stuck").exists, "a step that does not end")
        run.backend.nodes.drain("node-1")
        await run.until(lambda: len(run.report.overdue) == 2, "both have waited for its end")
        stuck.unlink()
        await run.until_stepping(2)
        assert run.history() == [("started", 4), ("left", 2)]
        assert await run.finish() == "Complete", run.story()
        told = run.console.getvalue()
        assert "GracePeriodTooShort: probe-worker-001-1 was ended before" in " ".join(told.split())
