"""What each fault leads to: memberships, their causes, and who keeps running. Real processes.

The commands are plain Python without torch, so that the table is quick; `test_torchrun.py` runs
the same agent under real torchrun. A fault and its outcome are one row.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from ddpjob_operator.local.simulated.processes import marked
from ddpjob_protocol.environment import ENV_MEMBERSHIP, ENV_WORKER
from support.beside import two_at_once
from support.driving import SCRIPT, Run, job_text, running
from support.scenes import Job, Scene, play
from support.stories import Subtests, stories

COMMAND = "[python3, train.py, end]"
QUICK = {"elastic": "{joinPolicy: Immediate, settleSeconds: 0.2}"}
STARTED = ("started", 3)
# Seconds of heavy load: long enough for heartbeats to be missed if they could be; `make soak`: 30.
LOAD = float(os.environ.get("DDPJOB_LOAD_SECONDS", "8"))


def trainers(run: Run, node: str) -> list[psutil.Process]:
    pod = run.backend.nodes.on(node)
    assert pod is not None
    assert pod.process is not None
    return psutil.Process(pod.process.pid).children(recursive=True)


def pids(run: Run, membership: str | None = None) -> dict[str, int]:
    """The process of each worker's command, or only those of a membership."""
    found = {}
    for process in marked(run.backend.job.metadata.uid):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may be ending just now
            environment = process.environ()
            if membership in (None, environment.get(ENV_MEMBERSHIP)) and (
                process.cmdline()[1:2] == ["train.py"]
            ):
                found[environment[ENV_WORKER]] = process.pid
    return found


def newest(run: Run) -> dict[str, int]:
    """Those of the newest membership: without collectives others may step before they start."""
    membership = run.report.membership
    return pids(run, str(membership.id)) if membership else {}


def status_history(run: Run) -> list[tuple[str, str, datetime]]:
    """Membership, cause and time of the entries in the status."""
    return [(each.membership, each.cause, each.since) for each in run.backend.status.history]


async def all_newest(run: Run) -> dict[str, int]:
    """Wait until each of three workers has its newest process."""
    await run.until(lambda: len(newest(run)) == 3, "every worker's newest process")
    return newest(run)


async def an_agent_is_killed(job: Job) -> None:
    """Its pod dies with it; a new one takes its place on the same node."""
    job.nodes.kill_agent("node-1")
    await job.has(("lost", 2), ("joined", 3))
    assert job.counted()[0] == 0


async def a_worker_process_is_killed(job: Job) -> None:
    """An application failure: one restart of the budget, the same workers."""
    await all_newest(job.run)
    for process in trainers(job.run, job.nodes.busy()[-1]):
        process.kill()
    await job.has(("failed", 3))
    assert job.counted() == (1, 0)
    assert job.run.report.failure is not None
    assert "SIGKILL" in job.run.report.failure.summary


async def the_node_of_rank_0_is_killed(job: Job) -> None:
    before = job.run.report.membership
    assert before is not None
    pods = job.nodes.pods.values()
    node = next(pod.node for pod in pods if pod.name == before.members[0].worker)
    assert node is not None
    job.nodes.kill(node)
    await job.has(("lost", 2))
    after = job.run.report.membership
    assert after is not None
    assert after.members == before.members[1:], "survivors keep their order"
    await job.fills_up(3, 3)


async def the_rendezvous_is_killed(job: Job) -> None:
    """Nobody restarts, and the next change works."""
    boot = job.run.report.boot
    before, number = await all_newest(job.run), len(job.seen)
    past = status_history(job.run)
    job.run.backend.service.kill()
    await job.run.until(lambda: job.run.report.boot == boot + 1, "the service's next boot")
    await job.run.until(lambda: len(job.run.report.workers) == 3, "all agents are back")
    await job.run.until(lambda: (job.run.report.step or 0) > 0, "steps are reported again")
    assert pids(job.run) == before
    assert job.run.history() == job.seen[-1:], "relearned from the agents"
    job.begin()
    job.nodes.kill(job.nodes.busy()[0])
    await job.has(("lost", 2))
    assert job.run.report.membership is not None
    assert job.run.report.membership.id == (1, boot + 1, number + 1)
    await job.fills_up(3, 3)
    kept = status_history(job.run)
    assert (kept[: len(past)], len(past)) == (past, number), "the status keeps what was before"
    assert [cause for _, cause, _ in kept[number:]] == ["lost", "joined"]
    ended = job.run.backend.status.history[number].stall_seconds
    assert ended is not None, "the stall of the loss"
    assert ended > 0


async def two_nodes_are_killed_at_once(job: Job) -> None:
    one, _, three = job.nodes.busy()
    job.nodes.kill(one)
    job.nodes.kill(three)
    await job.has(("lost", 1))  # one change, not two
    await job.fills_up(3, 3)


async def a_node_is_killed_while_a_change_goes_on(job: Job) -> None:
    """The second node goes when the membership without the first has just been formed."""
    one, two, _ = job.nodes.busy()
    job.nodes.kill(one)
    await job.run.until(lambda: len(job.run.report.memberships) > len(job.seen), "the first change")
    job.nodes.kill(two)
    await job.has(("lost", 2), ("lost", 1))
    assert job.counted()[0] == 0
    await job.fills_up(3, 3)


async def a_node_is_frozen_for_longer_than_the_heartbeat(job: Job) -> None:
    """It is lost; when it thaws, its old processes are ended and it joins again."""
    before, node = await all_newest(job.run), job.nodes.busy()[1]
    pod = job.nodes.on(node)
    assert pod is not None
    job.nodes.signal(node, signal.SIGSTOP)
    await job.has(("lost", 2))
    assert psutil.pid_exists(before[pod.name]), "frozen, not dead"
    job.nodes.signal(node, signal.SIGCONT)
    await job.has(("lost", 2), ("joined", 3))
    assert not psutil.pid_exists(before[pod.name])


async def heavy_load_loses_nobody(job: Job) -> None:
    """Busy loops beside every agent, at a higher priority than the agents'."""
    for pod in job.nodes.pods.values():
        assert pod.process is not None
        psutil.Process(pod.process.pid).nice(10)
    count = 4 * (os.cpu_count() or 1)
    burn = f"import time; end = time.monotonic() + {LOAD}\nwhile time.monotonic() < end: pass"
    burners = [await asyncio.create_subprocess_exec("python3", "-c", burn) for _ in range(count)]
    try:
        await asyncio.gather(*(burner.wait() for burner in burners))
    finally:
        for burner in burners:
            if burner.returncode is None:
                burner.kill()
    assert job.run.history() == job.seen
    assert len(job.run.report.workers) == 3


@stories(
    (
        an_agent_is_killed,
        a_worker_process_is_killed,
        the_node_of_rank_0_is_killed,
        the_rendezvous_is_killed,
    ),
    (
        two_nodes_are_killed_at_once,
        a_node_is_killed_while_a_change_goes_on,
        a_node_is_frozen_for_longer_than_the_heartbeat,
        heavy_load_loses_nobody,
    ),
)
@two_at_once
async def test_outcomes(tmp_path: Path, subtests: Subtests, story: Sequence[Scene[Job]]) -> None:
    policy = {"failurePolicy": "{backoffSeconds: 0.1}"}
    async with running(tmp_path, job_text(COMMAND, **QUICK, **policy)) as run:
        await run.until_stepping(1)
        assert run.history() == [STARTED]
        job = Job(run)
        for scene in story:
            await play(subtests, scene, job)
        assert await run.finish() == "Complete"


@two_at_once
async def test_orphaned_workers_stop_and_go_on_when_the_service_is_back(tmp_path: Path) -> None:
    """The service is silent for longer than orphanSeconds; nobody must train on unseen."""
    spec = {"elastic": "{joinPolicy: Immediate, settleSeconds: 0.2, orphanSeconds: 5}"}
    async with running(tmp_path, job_text(COMMAND, **spec)) as run:
        await run.until_stepping(1)
        run.backend.service.signal(signal.SIGSTOP)
        await run.until(lambda: not pids(run), "all processes are stopped")
        run.backend.service.signal(signal.SIGCONT)
        await run.until(lambda: len(run.report.memberships) > 1, "a new membership")
        assert run.history()[1][0] == "lost"
        await run.until(
            lambda: run.history()[-1][1] == 3 and len(pids(run)) == 3, "all train again"
        )
        assert run.report.failures == 0
        assert await run.finish() == "Complete"


@two_at_once
async def test_below_the_minimum_it_waits_and_goes_on_with_a_new_node(tmp_path: Path) -> None:
    spec = {"minReplicas": 3, **QUICK}
    async with running(tmp_path, job_text(COMMAND, **spec)) as run:
        await run.until_stepping(1)
        run.backend.nodes.kill("node-1")
        await run.until(lambda: run.report.state == "Waiting", "it waits")
        await run.until(lambda: not pids(run), "the others are stopped")
        assert "2 of at least 3 workers" in run.report.reason
        run.backend.nodes.add()
        await run.until_stepping(2)
        assert run.history() == [STARTED, ("lost", 3)]
        assert run.report.failures == 0
        assert await run.finish() == "Complete"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param('["sh", "-c", "true; python3 train.py end; true"]', id="below a shell"),
        pytest.param('["python3", "daemons.py", "end"]', id="with a daemonised grandchild"),
    ],
)
@two_at_once
async def test_the_whole_tree_ends_with_its_membership(tmp_path: Path, command: str) -> None:
    (tmp_path / "daemons.py").write_text(
        "import os, subprocess, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.environ.clear()\n"
        "        time.sleep(3600)\n"
        "    os._exit(0)\n"
        "sys.exit(subprocess.call([sys.executable, 'train.py', *sys.argv[1:]]))\n"
    )
    async with running(tmp_path, job_text(command, **QUICK)) as run:
        await run.until_stepping(1)
        before = [p for node in ("node-0", "node-1") for p in trainers(run, node)]
        assert len(before) >= 4
        run.backend.nodes.kill("node-2")
        await run.until_stepping(2)
        assert not [p for p in before if p.is_running()], "of the first membership"
        assert run.history() == [STARTED, ("lost", 2)]


@two_at_once
async def test_result_said_just_before_the_end(tmp_path: Path) -> None:
    """Reports are thinned, but not the last one."""
    script = (
        SCRIPT
        + """
    for step in range(step, 1001):
        report(event="step", step=step, total=1000, metrics={"loss": 0.1})
    report(event="step", step=1000, total=1000, metrics={"loss": 0.1, "accuracy": 0.5})
    os._exit(0)
"""
    )
    text = job_text(COMMAND, **{**QUICK, "replicas": 1})
    async with running(tmp_path, text, script=script) as run:
        await run.until_stepping(1)
        assert await run.finish() == "Complete"
        assert (run.report.step, run.report.metrics) == (1000, {"loss": 0.1, "accuracy": 0.5})
