"""Level L1: a planned change waits for the end of a step, which is saved; it costs no step.

By a ledger outside of the processes. No snapshot is due but those of the agreed steps.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import psutil

from ddpjob_agent.worker.settings import LEAVE_SECONDS, RESERVE_SECONDS
from ddpjob_protocol.environment import GRACE_SECONDS
from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import Ledger
from support.scenes import Job, Scene, play
from support.stories import Subtests, stories

SCRIPT = """
    import json, os, pathlib, socket, sys, time
    import torch, torch.distributed as dist
    from ddpjob_trainer import Snapshots, step_done
    from ddpjob_trainer.snapshots.storage.directory import DirectoryFiles

    upload = DirectoryFiles.upload

    def write_slowly(*what):
        time.sleep(2 if pathlib.Path("slow-writes").exists() else 0)
        return upload(*what)

    DirectoryFiles.upload = write_slowly
    ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ledger.connect("ledger.sock")
    end = pathlib.Path(sys.argv[1])

    def tell(what, step):
        facts = (dist.get_rank(), dist.get_world_size(), os.getpid(), "")
        ledger.send(json.dumps((os.environ["DDPJOB_MEMBERSHIP"], what, step, *facts)).encode())

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshots = Snapshots()
    loaded = snapshots.load(model=model, optimizer=optimizer)
    step, seen = loaded.step if loaded else 0, torch.zeros(1)
    while not seen.item():
        tell("begun", step)
        seen = torch.tensor([float(end.exists())])
        dist.all_reduce(seen)
        time.sleep(1.5 if pathlib.Path("slow-steps").exists() else 0.1)
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


class Saving(Job):
    """A job whose every process asks after each step whether it is the last one."""

    def __init__(self, folder: Path, run: Run, ledger: Ledger) -> None:
        super().__init__(run)
        self.folder = folder
        self.ledger = ledger

    def node_of_rank_0(self) -> str:
        """Of the newest membership."""
        newest = self.ledger.courses()[-1].membership
        [pid] = {r.pid for r in self.ledger.rows() if (r.membership, r.rank) == (newest, 0)}
        above = {parent.pid for parent in psutil.Process(pid).parents()}
        pods = self.nodes.pods.values()
        return next(p.node for p in pods if p.node and p.process and p.process.pid in above)

    @contextlib.contextmanager
    def having(self, name: str) -> Iterator[None]:
        """While this file is there, the script behaves differently."""
        (self.folder / name).touch()
        yield
        (self.folder / name).unlink()


@contextlib.asynccontextmanager
async def saving(folder: Path, nodes: int, grace: float = GRACE_SECONDS) -> AsyncIterator[Saving]:
    """A job on so many nodes, two processes on each."""
    ledger = Ledger(folder)
    try:
        text = job_text("[torchrun, train.py, end]", **{"replicas": nodes, **SPEC})
        async with running(folder, text, nodes=nodes, script=SCRIPT) as run:
            run.backend.nodes.grace_seconds = grace
            await run.until_stepping(1, steps=2)
            yield Saving(folder, run, ledger)
    finally:
        ledger.close()
        (folder / "ledger.sock").unlink()


def check(ledger: Ledger, memberships: int) -> None:
    """Every step was done once, by all, and none was begun in vain."""
    courses = ledger.courses()
    assert len(courses) == memberships, courses
    assert [a.done for a in courses[:-1]] == [b.first for b in courses[1:]], courses
    assert not any(ledger.void_steps()), courses


async def drained_joined_and_drained_again(job: Saving) -> None:
    """The node with rank 0 goes first, then one that came later."""
    job.nodes.drain(job.node_of_rank_0())
    await job.has(("left", 2), steps=2)
    new = job.nodes.add()
    await job.has(("left", 2), ("joined", 4), steps=2)
    job.nodes.drain(new)
    await job.has(("left", 2), ("joined", 4), ("left", 2), steps=2)
    job.nodes.add()
    await job.has(("left", 2), ("joined", 4), ("left", 2), ("joined", 4), steps=2)


async def steps_take_long(job: Saving) -> None:
    """In so much time torchrun looks at its store many times; it must find it."""
    with job.having("slow-steps"):
        job.nodes.drain(job.nodes.busy()[0])
        await job.has(("left", 2), steps=2)
        job.nodes.add()
        await job.has(("left", 2), ("joined", 4), steps=1)


async def a_snapshot_takes_long(job: Saving) -> None:
    """Rank 0 leaves; the others wait until it has written what they go on from."""
    with job.having("slow-writes"):
        job.nodes.drain(job.node_of_rank_0())
        await job.has(("left", 2), steps=2)
    job.nodes.add()
    await job.has(("left", 2), ("joined", 4), steps=2)


async def a_node_is_killed_while_the_others_wait_for_the_agreed_step(job: Saving) -> None:
    """The step cannot be done any more; nobody waits for it."""
    one, two, _ = job.nodes.busy()
    job.nodes.drain(one)
    job.nodes.kill(two)
    await job.run.until(lambda: job.run.history()[-1][1] == 2, "one worker is left")
    await job.run.until(lambda: bool(job.run.report.memberships[-1].last_step), "it steps")
    await job.fills_up(2, 4)
    await job.run.until_stepping(len(job.run.history()), steps=2)


async def a_step_outlasts_the_grace_period(job: Saving) -> None:
    """The processes are ended in time, people are told, and the others go on."""
    with job.having("stuck"):
        await job.run.until((job.folder / "is-stuck").exists, "a step that does not end")
        job.nodes.drain(job.nodes.busy()[-1])
        await job.run.until(lambda: len(job.run.report.warnings) == 2, "both waited for its end")
    await job.has(("left", 2), steps=2)
    told = " ".join(job.run.console.getvalue().split())
    assert re.search(r"GracePeriodTooShort: probe-worker-00\d-\d: was killed before", told)


@stories((drained_joined_and_drained_again, steps_take_long, a_snapshot_takes_long))
@two_at_once
async def test_planned_changes_cost_no_step(
    tmp_path: Path, subtests: Subtests, story: Sequence[Scene[Saving]]
) -> None:
    """In the end all workers are told to go at once, as when a job is suspended or deleted."""
    async with saving(tmp_path, 2) as job:
        for scene in story:
            await play(subtests, scene, job)
        memberships = len(job.run.history())
        job.run.backend.stop()
        await job.run.task
        check(job.ledger, memberships)
        stopped_at = job.ledger.courses()[-1].done
    async with saving(tmp_path, 2) as job:
        assert await job.run.finish() == "Complete", job.run.story()
        (after,) = job.ledger.courses()
        assert after.first == stopped_at > 0


@stories(
    (
        a_node_is_killed_while_the_others_wait_for_the_agreed_step,
        a_step_outlasts_the_grace_period,
    )
)
@two_at_once
async def test_an_agreed_step_that_is_not_done(
    tmp_path: Path, subtests: Subtests, story: Sequence[Scene[Saving]]
) -> None:
    nodes = 3 if a_node_is_killed_while_the_others_wait_for_the_agreed_step in story else 2
    async with saving(tmp_path, nodes, grace=RESERVED + 2) as job:
        for scene in story:
            await play(subtests, scene, job)
        assert await job.run.finish() == "Complete", job.run.story()


RANK_0_ONLY = SCRIPT.replace(
    "if snapshots.due(step):", "if RANK_0 and snapshots.due(step):"
).replace(
    "dist.init_process_group(", "RANK_0 = os.environ['RANK'] == '0'; dist.init_process_group("
)


@two_at_once
async def test_ranks_that_never_ask_are_reported(tmp_path: Path) -> None:
    """As in many tutorials; a planned change then costs the steps since the last snapshot."""
    with contextlib.closing(Ledger(tmp_path)):
        text = job_text("[torchrun, train.py, end]", **{"replicas": 1, **SPEC})
        async with running(tmp_path, text, nodes=1, script=RANK_0_ONLY) as run:
            await run.until_stepping(1)
            await run.until(lambda: bool(run.report.warnings), "the problem is reported")
            (warning,) = run.report.warnings
            assert warning.reason == "DueNotCalled"
            assert warning.message.startswith("rank 1 never calls snapshots.due(step)")
            assert await run.finish() == "Complete"
