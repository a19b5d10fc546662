"""Changes of the membership in the middle of a run, in live and in snapshot mode.

The test decides what the rendezvous service would decide, and the agents' own code sends it to the
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddpjob_protocol.environment import (
    ENV_LIVE,
    ENV_MEMBERSHIP,
    ENV_SNAPSHOT_DIR,
    ENV_SNAPSHOT_EVERY,
    ENV_STORE,
)
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from ddpjob_protocol.messages.process import Assignment
from trainer.habits.processes import NEVER, Job, Process, Zygote, kill
from trainer.habits.runs import Run

MOST = 3  # processes at a time
POINTS = 6  # a process dies at one of these: a backward, before or after an optimizer's step
EARLY_SECONDS = 0.5
STEPS_BETWEEN = 3  # from one change to the next
SAVE_EVERY = 2  # steps


class Change(NamedTuple):
    """A change of the membership, at some point of a step."""

    kind: str  # join | leave | kill | cut: all stay, and their connections break
    points: int  # from a log on to the death or the cut
    which: float  # chooses the process: from 0 to 1


def draw(seed: int, count: int, workers: int) -> list[Change]:
    """Draw changes; one to three processes are left after each."""
    chance, found = random.Random(seed), list[Change]()
    while len(found) < count:
        kinds = ["cut", *(["leave", "kill"] if workers > 1 else [])]
        kinds += ["join", "join"] if workers < MOST else []
        kind = chance.choice(kinds)
        workers += {"join": 1, "cut": 0}.get(kind, -1)
        found.append(Change(kind, chance.randrange(1, POINTS + 1), chance.random()))
    return found


# --- live mode ------------------------------------------------------------------------------------


async def run_live(
    zygote: Zygote, script: str, folder: Path, workers: int, changes: Sequence[Change] = ()
) -> Run:
    """Run a script of live mode: the processes stay."""
    job = Job(zygote, script, folder, STEPS_BETWEEN if changes else NEVER)
    async with job.open():
        job.members = [await _start_live(job) for _ in range(workers)]
        await _until_ready(job, job.members)
        if not job.has_lost_one:
            _assign(job, None)
            for change in changes:
                if not await job.hold() or not await _change(job, change):
                    break
        return await job.finish()


async def run_live_with_a_joiner_at(
    zygote: Zygote, script: str, folder: Path, step: int, workers: int = 2
) -> Run:
    """Run a script of live mode that ends at this step, at which another process is to join."""
    job = Job(zygote, script, folder, step)
    async with job.open():
        job.members = [await _start_live(job) for _ in range(workers)]
        await _until_ready(job, job.members)
        _assign(job, None)
        assert await job.hold()
        new = await _start_live(job)
        new.is_member = False
        await _until_ready(job, [new])
        after = await _agree_on_last_step(job)
        with contextlib.suppress(TimeoutError):  # time for a member to finish too early
            await asyncio.wait_for(job.until(lambda: job.is_ending, "an end"), EARLY_SECONDS)
        assert not job.is_ending, "a member finished after its promise"
        _let_join(job, new, after)
        return await job.finish()


def _let_join(job: Job, new: Process, after: int | None) -> None:
    new.is_member = True
    job.members.append(new)
    _assign(job, after)


async def _start_live(job: Job) -> Process:
    return await job.start(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        TORCHELASTIC_RESTART_COUNT=f"{len(job.all)}",
        **{ENV_LIVE: "1", ENV_STORE: f"127.0.0.1:{job.port}"},
    )  # fmt: skip


async def _until_ready(job: Job, processes: Sequence[Process]) -> None:
    await job.until(
        lambda: all(each.agent.ready or each.has_ended for each in processes), "all are ready"
    )


def _assign(job: Job, after: int | None) -> None:
    job.number += 1
    members = tuple(Member(each.key, each.key, "127.0.0.1", 1) for each in job.members)
    identity = MembershipId(1, 1, job.number)
    membership = Membership(identity, members, Cause.JOINED, "", after=after)
    for rank, process in enumerate(job.members):
        process.assignment = Assignment(membership, rank)
        process.agent.assign(process.assignment)


async def _change(job: Job, change: Change) -> bool:
    """Change the membership; return False if a process has ended meanwhile."""
    chosen = job.members[int(change.which * len(job.members))]
    match change.kind:
        case "kill":
            if not await job.die(chosen, change.points):
                return False
            job.members.remove(chosen)
            _assign(job, None)
        case "cut":
            await job.pause(chosen, change.points)
            _assign(job, None)
            job.release()
        case "join":
            new = await _start_live(job)
            new.is_member = False
            await _until_ready(job, [new])
            after = await _agree_on_last_step(job)
            if job.is_ending:
                return False
            _let_join(job, new, after)
        case _:
            after = await _agree_on_last_step(job)
            if job.is_ending:
                return False
            job.members.remove(chosen)
            chosen.agent.assign(Assignment(leave=True, last_step=after))
            _assign(job, after)
    return not job.has_lost_one


async def _agree_on_last_step(job: Job) -> int | None:
    for process in job.members:
        process.promise = None
        was = process.assignment or Assignment()
        process.agent.assign(Assignment(was.membership, was.first_rank, stop_requested=True))
    await job.until(
        lambda: job.is_ending or all(each.promise is not None for each in job.members),
        "promises", or_an_end=True,
    )  # fmt: skip
    job.release()  # not before: a process might end before it has read the request
    return max((each.promise for each in job.members if each.promise is not None), default=None)


# --- snapshot mode --------------------------------------------------------------------------------


async def run_snapshot(
    zygote: Zygote, script: str, folder: Path, workers: int, changes: Sequence[Change] = ()
) -> Run:
    """Run a script of snapshot mode: after each change all processes start again."""
    job = Job(zygote, script, folder, STEPS_BETWEEN if changes else NEVER)
    async with job.open():
        await _start_all(job, workers)
        for change in changes:
            if not await job.hold():
                break
            if change.kind in ("join", "leave"):
                goes_on = await _stop_together(job)
            else:
                chosen = job.members[int(change.which * len(job.members))]
                goes_on = await job.die(chosen, change.points)
            if not goes_on:
                break
            for process in job.members:
                process.is_victim = True
                kill(process)
            for process in job.members:
                await process.code
            workers += {"join": 1, "cut": 0}.get(change.kind, -1)
            await _start_all(job, workers)
        return await job.finish()


async def _start_all(job: Job, workers: int) -> None:
    job.number += 1
    if job.members:
        await job.open_store()  # as torchrun: ranks of two starts must not meet
    job.members = [
        await job.start(
            RANK=str(rank), LOCAL_RANK=str(rank),
            WORLD_SIZE=str(workers), LOCAL_WORLD_SIZE=str(workers),
            TORCHELASTIC_RESTART_COUNT=str(job.number),
            **{
                ENV_MEMBERSHIP: f"1.1.{job.number}", ENV_SNAPSHOT_EVERY: str(SAVE_EVERY),
                ENV_SNAPSHOT_DIR: str(job.folder / "snapshots"),
            },
        )
        for rank in range(workers)
    ]  # fmt: skip


async def _stop_together(job: Job) -> bool:
    """Stop all after one step, which they save: a planned change."""
    after = await _agree_on_last_step(job)
    if job.has_lost_one:
        return False
    for process in job.members:
        process.agent.assign(Assignment(last_step=after, save=True))
    await job.until(
        lambda: all(each.agent.stopped for each in job.members), "all stop", or_an_end=True
    )
    return not job.has_lost_one
