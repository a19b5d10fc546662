"""Level L2: processes that stay. What each fault and each planned change costs, by a ledger."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from ddpjob_trainer import manifest
from ddpjob_trainer.shelf import Shelf
from driving import Run, in_background, job_text, running
from ledger import SCRIPT, STEPS, Ledger

COMMAND = "[torchrun, train.py, end]"
# Every rank writes a part of each snapshot, although the state is small.
IN_PARTS = SCRIPT.replace(
    "from ddpjob_trainer import Loop",
    "from ddpjob_trainer import Loop, parts; parts.LEAST_BYTES = 1; "
    "os.environ['DDPJOB_SNAPSHOT_DIR'] = 'snapshots'",
)
# One process loses its connections, once; it and its node are well.
DISCONNECTED = (
    SCRIPT.replace(
        "loss.backward()",
        "step.number == 20 and step.rank == 1 and disconnect(); loss.backward()",
    )
    .replace(
        "torch.set_num_threads(1)",
        """torch.set_num_threads(1)

    def disconnect():
        if not os.path.exists("disconnected"):
            pathlib.Path("disconnected").touch()
            for connection in psutil.Process().net_connections("tcp"):
                if connection.status == psutil.CONN_ESTABLISHED:
                    socket.socket(fileno=os.dup(connection.fd)).shutdown(socket.SHUT_RDWR)
    """,
    )
    .replace("import torch", "import psutil, torch", 1)
)
# The first rank does not come back from a step, once.
STUCK = (
    SCRIPT.replace(
        "loss.backward()", "step.number == 20 and step.rank == 0 and stand_still(); loss.backward()"
    )
    .replace(
        "torch.set_num_threads(1)",
        """torch.set_num_threads(1)

    def stand_still():
        if not os.path.exists("stands-still"):
            pathlib.Path("stands-still").touch()
            threading.Event().wait()
    """,
    )
    .replace("import torch", "import threading, torch", 1)
)
QUICK = {
    "elastic": "{settleSeconds: 0.2}",
    "failurePolicy": "{backoffSeconds: 0.5}",
    "processesPerWorker": 1,
}


@contextlib.asynccontextmanager
async def live(
    folder: Path, nodes: int = 3, script: str = SCRIPT, **spec: object
) -> AsyncIterator[tuple[Run, Ledger]]:
    """A job of three workers whose processes stay."""
    ledger = Ledger(folder)
    try:
        text = job_text(COMMAND, **{"replicas": nodes, **QUICK, **spec})
        async with running(folder, text, nodes=nodes, script=script) as run:
            await run.until_stepping(1)
            yield run, ledger
    finally:
        ledger.close()


def training_processes(run: Run, node: str) -> list[psutil.Process]:
    pod = run.backend.nodes.on(node)
    assert pod is not None
    assert pod.process is not None
    children = psutil.Process(pod.process.pid).children(recursive=True)
    return [process for process in children if "train.py" in process.cmdline()[1:3]]


def pids(run: Run, *nodes: str) -> set[int]:
    return {process.pid for node in nodes for process in training_processes(run, node)}


def causes(run: Run) -> list[str]:
    return [each.cause for each in run.report.rounds]


async def ends_well(run: Run, ledger: Ledger, dead: set[int]) -> None:
    assert await run.finish() == "Complete"
    ledger.check(STEPS, dead=frozenset(dead))
    finals = ledger.finals()
    assert all(final == finals[0] for final in finals), "all processes end with the same state"
    assert run.report.live


@in_background
async def test_nothing_happens(tmp_path: Path) -> None:
    async with live(tmp_path) as (run, ledger):
        await ends_well(run, ledger, set())
        assert run.history() == [("started", 3)]
        assert len(ledger.courses()) == 1
        assert len(ledger.finals()) == 3


@in_background
async def test_node_killed(tmp_path: Path) -> None:
    """The others go on in the same processes; the replacement joins them."""
    async with live(tmp_path) as (run, ledger):
        stay, dead = pids(run, "node-1", "node-2"), pids(run, "node-0")
        run.backend.nodes.kill("node-0")
        await run.until_stepping(2)
        assert run.history() == [("started", 3), ("lost", 2)]
        assert pids(run, "node-1", "node-2") == stay
        run.backend.nodes.add()
        await run.until_stepping(3)
        assert run.history()[2:] == [("joined", 3)]
        assert pids(run, "node-1", "node-2") == stay
        await ends_well(run, ledger, dead)
        assert stay <= ledger.courses()[-1].pids
        assert (run.report.failures, run.report.losses) == (0, 1)


@in_background
async def test_two_nodes_of_four_killed_at_once(tmp_path: Path) -> None:
    async with live(tmp_path, nodes=4) as (run, ledger):
        dead = pids(run, "node-0", "node-2")
        run.backend.nodes.kill("node-0")
        run.backend.nodes.kill("node-2")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps")
        await run.until(lambda: run.history()[-1][1] == 2, "two are left")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps of the two")
        await ends_well(run, ledger, dead)


@in_background
async def test_node_killed_while_all_write_snapshots(tmp_path: Path) -> None:
    """What was being written by all may be lost; no other one, and nobody waits for the dead."""
    async with live(tmp_path, script=IN_PARTS, snapshot="{everySteps: 2}") as (run, ledger):
        dead = pids(run, "node-1")
        await run.until(lambda: (run.report.snapshot_step or 0) > 10, "snapshots")
        run.backend.nodes.kill("node-1")
        await run.until_stepping(2)
        since = run.report.snapshot_step or 0
        await run.until(lambda: (run.report.snapshot_step or 0) > since + 10, "more of them")
        run.backend.nodes.add()
        await run.until_stepping(3)
        await ends_well(run, ledger, dead)
    shelf = Shelf(tmp_path / "snapshots", 3)
    newest, *others = shelf.steps()
    assert newest == STEPS
    assert [*shelf.check(newest)["files"]] == [manifest.part_name(rank) for rank in range(3)]
    for step in others:
        shelf.check(step)
    assert [*shelf.directory.glob(".step-*")] == []


@in_background
async def test_training_process_killed(tmp_path: Path) -> None:
    """A failure of the application: its worker rests and joins again, the others go on at once."""
    async with live(tmp_path) as (run, ledger):
        stay, dead = pids(run, "node-0", "node-2"), pids(run, "node-1")
        for process in training_processes(run, "node-1"):
            process.kill()
        await run.until(lambda: causes(run) == ["started", "failed", "joined"], "it is back")
        await run.until_stepping(3)
        assert pids(run, "node-0", "node-2") == stay
        assert (run.report.failures, run.report.losses) == (1, 0)
        assert run.report.failure is not None
        assert "SIGKILL" in run.report.failure.summary
        await ends_well(run, ledger, dead)


@in_background
async def test_connections_broken(tmp_path: Path) -> None:
    """A network's hiccup, such as a forgotten connection: all stay, and connect anew."""
    async with live(tmp_path, script=DISCONNECTED) as (run, ledger):
        stay = pids(run, "node-0", "node-1", "node-2")
        await run.until(lambda: causes(run) == ["started", "failed"], "they have connected anew")
        await run.until_stepping(2)
        assert pids(run, "node-0", "node-1", "node-2") == stay
        assert run.report.failures == 1
        assert run.report.failure is not None
        assert "lost its connection" in run.report.failure.summary
        await ends_well(run, ledger, set())


@in_background
async def test_node_frozen_and_thawed(tmp_path: Path) -> None:
    """Silent: its peers hang in their collectives until the service misses its heartbeats."""
    async with live(tmp_path) as (run, ledger):
        frozen, stay = pids(run, "node-1"), pids(run, "node-0", "node-2")
        run.backend.nodes.signal("node-1", signal.SIGSTOP)
        await run.until_stepping(2)
        assert run.history() == [("started", 3), ("lost", 2)]
        run.backend.nodes.signal("node-1", signal.SIGCONT)
        await run.until_stepping(3)
        assert run.history()[2:] == [("joined", 3)]
        assert pids(run, "node-0", "node-2") == stay
        assert pids(run, "node-1") == frozen, "it stays, too, and gets the newer state"
        await ends_well(run, ledger, frozen)


@in_background
async def test_training_process_frozen(tmp_path: Path) -> None:
    """Its agent lives on. Nobody notices before another change does; then it is given up."""
    async with live(tmp_path) as (run, _ledger):
        (frozen,) = training_processes(run, "node-1")
        stay = pids(run, "node-0")
        frozen.send_signal(signal.SIGSTOP)
        run.backend.nodes.kill("node-2")
        await run.until(
            lambda: run.history()[-1] == ("joined", 2) or run.history()[-1][1] == 1, "it goes on"
        )
        await run.until(lambda: run.history()[-1][1] == 2, "it is replaced")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps")
        assert not frozen.is_running()
        assert pids(run, "node-0") == stay
        assert await run.finish() == "Complete"


@in_background
async def test_the_only_one_left_is_stuck(tmp_path: Path) -> None:
    """In a collective that gloo has forgotten, for one. Another process goes on with its state."""
    async with live(tmp_path, nodes=2, script=STUCK) as (run, ledger):
        stuck, dead = pids(run, "node-0"), pids(run, "node-1")
        await run.until((tmp_path / "stands-still").exists, "a process stands still")
        run.backend.nodes.kill("node-1")
        await run.until_stepping(2)
        assert run.history() == [("started", 2), ("lost", 1)]
        assert not stuck & pids(run, "node-0")
        assert ledger.courses()[-1].first == 20
        await ends_well(run, ledger, dead)
        (final,) = ledger.finals()
        assert final["lr"] == [pytest.approx(0.001 * 0.97 ** (STEPS // 100))]
        assert (run.report.failures, run.report.losses, run.report.repeated_steps) == (0, 1, 0)
        (told,) = run.report.stuck
        assert told.endswith("another one goes on with its state, of step 20")


@in_background
async def test_node_drained(tmp_path: Path) -> None:
    """Planned: it leaves at the end of a step, and no step is cut off."""
    async with live(tmp_path) as (run, ledger):
        stay = pids(run, "node-0", "node-2")
        run.backend.nodes.drain("node-1")
        await run.until_stepping(2)
        assert run.history() == [("started", 3), ("left", 2)]
        assert pids(run, "node-0", "node-2") == stay
        await ends_well(run, ledger, set())
        assert ledger.void_steps() == [0]


@in_background
async def test_node_joins(tmp_path: Path) -> None:
    """Planned: nobody stops for it before it is ready, and no step is cut off."""
    async with live(tmp_path, nodes=2, replicas=3) as (run, ledger):
        stay = pids(run, "node-0", "node-1")
        run.backend.nodes.add()
        await run.until_stepping(2)
        assert run.history() == [("started", 2), ("joined", 3)]
        assert pids(run, "node-0", "node-1") == stay
        await ends_well(run, ledger, set())
        assert ledger.void_steps() == [0]


@in_background
async def test_scaled_down_and_up(tmp_path: Path) -> None:
    async with live(tmp_path, maxReplicas=3) as (run, ledger):
        spec = run.backend.job.spec
        job = run.backend.job
        run.backend.job = job.model_copy(update={"spec": spec.model_copy(update={"replicas": 1})})
        await run.until(lambda: run.history()[-1] == ("left", 1), "one is left")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps")
        job = run.backend.job
        run.backend.job = job.model_copy(update={"spec": spec})
        await run.until(lambda: run.history()[-1] == ("joined", 3), "three again")
        await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps")
        await ends_well(run, ledger, set())
        assert not any(ledger.void_steps())


@in_background
async def test_rendezvous_killed_and_then_a_node(tmp_path: Path) -> None:
    """Nobody notices; the next change waits for the new service."""
    async with live(tmp_path) as (run, ledger):
        stay, dead = pids(run, "node-0", "node-1"), pids(run, "node-2")
        run.backend.service.kill()
        await run.until(lambda: run.report.boot == 2, "the service's second boot")
        await run.until(lambda: len(run.report.workers) == 3, "all agents are back")
        assert run.history() == [("started", 3)]
        run.backend.nodes.kill("node-2")
        await run.until_stepping(2)
        assert run.history() == [("started", 3), ("lost", 2)]
        assert pids(run, "node-0", "node-1") == stay
        await ends_well(run, ledger, dead)


@in_background
async def test_below_the_minimum_it_waits_in_memory(tmp_path: Path) -> None:
    async with live(tmp_path, minReplicas=3) as (run, ledger):
        stay, dead = pids(run, "node-0", "node-2"), pids(run, "node-1")
        run.backend.nodes.kill("node-1")
        await run.until(lambda: run.report.state == "Waiting", "it waits")
        assert pids(run, "node-0", "node-2") == stay
        run.backend.nodes.add()
        await run.until_stepping(2)
        assert run.history() == [("started", 3), ("lost", 3)]
        assert pids(run, "node-0", "node-2") == stay
        await ends_well(run, ledger, dead)


@pytest.mark.parametrize("second", ["node-0", "node-1"])
def test_node_killed_during_a_change(tmp_path: Path, second: str) -> None:
    async def body() -> None:
        async with live(tmp_path) as (run, ledger):
            stay = {"node-0": "node-1", "node-1": "node-0"}[second]
            alive, dead = pids(run, stay), pids(run, second, "node-2")
            run.backend.nodes.kill("node-2")
            await run.until(lambda: len(run.report.rounds) == 2, "the first change")
            run.backend.nodes.kill(second)
            await run.until(lambda: run.history()[-1] == ("lost", 1), "the second change")
            await run.until(lambda: bool(run.report.rounds[-1].last_step), "steps")
            assert pids(run, stay) == alive
            await ends_well(run, ledger, dead)

    asyncio.run(body())
