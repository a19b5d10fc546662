"""Level L2: processes that stay. What each fault and each planned change costs, by a ledger."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import psutil
import pytest

from ddpjob_operator.local.simulated.processes import marked
from ddpjob_trainer.snapshots.model import manifest
from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.held_keys import keys_held, listening, role_of
from support.key_traces import keys_of
from support.ledger import SCRIPT, STEPS, Ledger
from support.scenes import Job, Scene, play
from support.stories import Subtests, stories
from trainer.snapshots import layout

COMMAND = "[torchrun, train.py, end]"
# Every rank writes a part of each snapshot, although the state is small.
IN_PARTS = SCRIPT.replace(
    "from ddpjob_trainer import Loop",
    "from ddpjob_trainer import Loop; from ddpjob_trainer.snapshots.model import write_plan; "
    "write_plan.LEAST_BYTES = 1; "
    "os.environ['DDPJOB_SNAPSHOT_DIR'] = 'snapshots'",
)
# On request a process loses its connections, once, while it and its node are well; or does not come
# back from a step, once.
HARMED = (
    SCRIPT.replace("loss.backward()", "harm(step.rank); loss.backward()")
    .replace("import torch", "import psutil, threading, torch", 1)
    .replace(
        "torch.set_num_threads(1)",
        """torch.set_num_threads(1)

    def asked(what, rank):
        try:
            pathlib.Path(f"{what}-{rank}").rename(f"{what}-done")
        except FileNotFoundError:
            return False
        return True

    def harm(rank):
        if asked("disconnect", rank):
            for connection in psutil.Process().net_connections("tcp"):
                if connection.status == psutil.CONN_ESTABLISHED:
                    socket.socket(fileno=os.dup(connection.fd)).shutdown(socket.SHUT_RDWR)
        if asked("stand-still", rank):
            threading.Event().wait()
        if asked("exit", rank):
            sys.exit(0)
    """,
    )
)
QUICK = {
    "elastic": "{settleSeconds: 0.2}",
    "failurePolicy": "{backoffSeconds: 0.5}",
    "processesPerWorker": 1,
}


class Live(Job):
    """A job of three workers whose processes stay."""

    def __init__(self, folder: Path, run: Run, ledger: Ledger) -> None:
        self.folder = folder
        self.ledger = ledger
        self.dead: set[int] = set()  # processes that were killed or frozen
        super().__init__(run)

    def begin(self) -> None:
        """Begin a scene."""
        super().begin()
        self._courses = len(self.ledger.courses())

    def training(self, node: str) -> list[psutil.Process]:
        """The training processes on a node."""
        pod = self.nodes.on(node)
        assert pod is not None
        assert pod.process is not None
        children = psutil.Process(pod.process.pid).children(recursive=True)
        return [process for process in children if "train.py" in process.cmdline()[1:3]]

    def pids(self, *nodes: str) -> set[int]:
        """Of the training processes on these nodes."""
        return {process.pid for node in nodes for process in self.training(node)}

    def lose(self, node: str) -> None:
        """Kill a node."""
        self.dead |= self.pids(node)
        self.nodes.kill(node)

    def void_steps(self) -> int:
        """Steps since the scene began that were begun in vain."""
        return sum(self.ledger.void_steps()[self._courses - 1 :])


@contextlib.asynccontextmanager
async def live(folder: Path, script: str = HARMED, **spec: object) -> AsyncIterator[Live]:
    """A job that is checked at its end: every step was done once, and all have the same state."""
    ledger = Ledger(folder)
    try:
        text = job_text(COMMAND, **{"maxReplicas": 3, **QUICK, **spec})
        async with running(folder, text, script=script) as run:
            await run.until_stepping(1)
            job = Live(folder, run, ledger)
            yield job
            assert await run.finish() == "Complete", run.story()
            ledger.check(STEPS, dead=frozenset(job.dead))
            finals = ledger.finals()
            assert finals
            assert all(final == finals[0] for final in finals), "all end with the same state"
            assert finals[0]["lr"] == [pytest.approx(0.001 * 0.97 ** (STEPS // 100))]
            assert run.report.live
    finally:
        ledger.close()


async def nothing_happens(job: Live) -> None:
    assert job.run.history() == [("started", 3)]
    assert len(job.ledger.courses()) == 1


async def the_users_processes_hold_no_key_and_every_port_is_known(job: Live) -> None:
    """SECURITY.md has a row for each port; the search finds the keys of an agent."""
    [one, *_] = job.nodes.busy()
    pod, key = job.nodes.on(one), job.run.backend._key
    assert pod is not None
    assert pod.process is not None
    keys = keys_of(key, [pod.name])
    agent = psutil.Process(pod.process.pid)
    assert keys_held(agent, keys) == {pod.name, "peers"}
    below = agent.children(recursive=True)
    assert {role_of(each) for each in below} == {"torchrun", "training process", "fork server"}
    for each in below:
        assert keys_held(each, keys) == set(), role_of(each)
    ports = listening(marked(job.run.backend.job.metadata.uid))
    assert ports.pop("training process") >= 3, "gloo's"
    assert +ports == {"service": 1, "agent": 3 * 3, "torchrun": 3}, "torch's stores"


async def a_node_is_killed(job: Live) -> None:
    """The others go on in the same processes; the replacement joins them."""
    one, two, three = job.nodes.busy()
    stay = job.pids(two, three)
    job.lose(one)
    await job.has(("lost", 2))
    assert job.pids(two, three) == stay
    job.nodes.add()
    await job.has(("lost", 2), ("joined", 3))
    assert job.pids(two, three) == stay
    assert stay <= job.ledger.courses()[-1].pids
    assert job.counted() == (0, 1)


async def two_nodes_are_killed_at_once(job: Live) -> None:
    one, two, three = job.nodes.busy()
    stay = job.pids(two)
    job.lose(one)
    job.lose(three)
    await job.run.until(lambda: job.run.history()[-1][1] == 1, "one is left")
    await job.steps()
    assert job.pids(two) == stay
    await job.fills_up(3, 3)
    assert job.pids(two) == stay


async def a_node_is_drained_and_another_one_joins(job: Live) -> None:
    """Planned: it leaves, and one joins when it is ready, at the end of a step; none is cut off."""
    one, two, three = job.nodes.busy()
    stay = job.pids(one, three)
    job.nodes.drain(two)
    await job.has(("left", 2))
    assert job.pids(one, three) == stay
    job.nodes.add()
    await job.has(("left", 2), ("joined", 3))
    assert job.pids(one, three) == stay
    assert job.void_steps() == 0


async def it_is_scaled_down_and_up(job: Live) -> None:
    scale(job.run, replicas=1)
    await job.run.until(lambda: job.run.history()[-1] == ("left", 1), "one is left")
    await job.steps()
    scale(job.run, replicas=3)
    await job.run.until(lambda: job.run.history()[-1] == ("joined", 3), "three again")
    await job.steps()
    assert job.void_steps() == 0


async def a_training_process_is_killed(job: Live) -> None:
    """A failure of the application: its worker rests and joins again, the others go on at once."""
    one, two, three = job.nodes.busy()
    stay = job.pids(one, three)
    job.dead |= job.pids(two)
    for process in job.training(two):
        process.kill()
    causes = ["failed", "joined"]
    await job.run.until(lambda: [c for c, _ in job.run.history()[-2:]] == causes, "it is back")
    await job.steps()
    assert job.pids(one, three) == stay
    assert job.counted() == (1, 0)
    assert job.run.report.failure is not None
    assert "SIGKILL" in job.run.report.failure.summary


async def a_training_process_ends_with_exit_code_0(job: Live) -> None:
    """In the middle of training: no success, but a failure that names the rank and the step."""
    nodes, pids = job.nodes.busy(), job.pids(*job.nodes.busy())
    (job.folder / "exit-1").touch()
    causes, seen = ["failed", "joined"], len(job.run.history())
    await job.run.until(lambda: [c for c, _ in job.run.history()[seen:]] == causes, "it is back")
    await job.steps()
    ended = pids - job.pids(*nodes)
    job.dead |= ended
    assert len(ended) == 1
    assert job.counted() == (1, 0)
    assert job.run.report.failure is not None
    assert re.match(
        r"rank 1 \(probe-worker-\d+-\d\) ended after step \d+, before the last step\. .*loop\.stop",
        job.run.report.failure.summary,
    )


async def connections_break(job: Live) -> None:
    """A network's hiccup, such as a forgotten connection: all stay, and connect anew."""
    nodes = job.nodes.busy()
    stay = job.pids(*nodes)
    (job.folder / "disconnect-1").touch()
    await job.has(("failed", 3))
    assert job.pids(*nodes) == stay
    assert job.counted() == (1, 0)
    assert job.run.report.failure is not None
    assert "lost its connection" in job.run.report.failure.summary


async def a_node_freezes_and_thaws(job: Live) -> None:
    """Silent: its peers hang in their collectives until the service misses its heartbeats."""
    one, two, three = job.nodes.busy()
    frozen, stay = job.pids(two), job.pids(one, three)
    job.dead |= frozen
    job.nodes.signal(two, signal.SIGSTOP)
    await job.has(("lost", 2))
    job.nodes.signal(two, signal.SIGCONT)
    await job.has(("lost", 2), ("joined", 3))
    assert job.pids(one, three) == stay
    assert job.pids(two) == frozen, "it stays, too, and gets the newer state"


async def a_training_process_freezes(job: Live) -> None:
    """Its agent lives on. Nobody notices before another change does; then it is given up."""
    one, two, three = job.nodes.busy()
    (frozen,) = job.training(two)
    stay = job.pids(one)
    job.dead.add(frozen.pid)
    frozen.send_signal(signal.SIGSTOP)
    job.lose(three)
    history = job.run.history
    await job.run.until(lambda: len(history()) > len(job.seen), "it goes on")
    await job.run.until(lambda: history()[-1] == ("joined", 2) or history()[-1][1] == 1, "a change")
    await job.run.until(lambda: history()[-1][1] == 2, "it is replaced")
    await job.steps()
    assert not frozen.is_running()
    assert job.pids(one) == stay
    await job.fills_up(3, 3)


async def the_rendezvous_is_killed_and_then_a_node(job: Live) -> None:
    """Nobody notices; the next change waits for the new service."""
    one, two, three = job.nodes.busy()
    stay, boot = job.pids(one, two), job.run.report.boot
    job.run.backend.service.kill()
    await job.run.until(lambda: job.run.report.boot == boot + 1, "the service's next boot")
    await job.run.until(lambda: len(job.run.report.workers) == 3, "all agents are back")
    assert job.run.history() == job.seen[-1:]
    job.begin()
    job.lose(three)
    await job.has(("lost", 2))
    assert job.pids(one, two) == stay
    await job.fills_up(3, 3)


async def the_second_node_is_killed_during_a_change(job: Live) -> None:
    one, two, three = job.nodes.busy()
    await killed_during_a_change(job, three, second=two, stay=one)


async def the_first_node_is_killed_during_a_change(job: Live) -> None:
    one, two, three = job.nodes.busy()
    await killed_during_a_change(job, three, second=one, stay=two)


async def killed_during_a_change(job: Live, first: str, second: str, stay: str) -> None:
    alive = job.pids(stay)
    job.lose(first)
    await job.run.until(lambda: len(job.run.report.memberships) > len(job.seen), "the first change")
    job.lose(second)
    await job.run.until(lambda: job.run.history()[-1] == ("lost", 1), "the second change")
    await job.steps()
    assert job.pids(stay) == alive
    await job.fills_up(3, 3)


async def the_only_one_left_is_stuck(job: Live) -> None:
    """In a collective that gloo has forgotten, for one. Another process goes on with its state."""
    _, _, three = job.nodes.busy()
    job.lose(three)
    await job.has(("lost", 2))
    membership = job.run.report.membership
    assert membership is not None
    pods = {pod.name: pod.node for pod in job.nodes.pods.values()}
    first, second = (pods[member.worker] for member in membership.members)
    assert first is not None
    assert second is not None
    repeated, losses = job.run.report.repeated_steps, job.run.report.losses
    stuck = job.pids(first)
    (job.folder / "stand-still-0").touch()
    await job.run.until((job.folder / "stand-still-done").exists, "a process stands still")
    at = max(row.step for row in job.ledger.rows() if row.pid in stuck)
    job.lose(second)
    await job.run.until(lambda: job.run.history()[-1] == ("lost", 1), "it is alone")
    await job.steps()
    assert not stuck & job.pids(first)
    assert job.ledger.courses()[-1].first == at
    assert job.run.report.repeated_steps == repeated
    assert (job.counted()[0], job.run.report.losses - losses) == (0, 1)
    (told,) = [w for w in job.run.report.warnings if w.reason == "ProcessStuck"]
    assert told.message.endswith(f"its replacement resumes from its state at step {at}")


def scale(run: Run, replicas: int) -> None:
    """Change the job's spec, as `kubectl scale` does."""
    job, update = run.backend.job, {"replicas": replicas}
    run.backend.job = job.model_copy(update={"spec": job.spec.model_copy(update=update)})


@stories(
    (
        nothing_happens,
        the_users_processes_hold_no_key_and_every_port_is_known,
        a_node_is_killed,
        a_node_is_drained_and_another_one_joins,
        it_is_scaled_down_and_up,
        two_nodes_are_killed_at_once,
    ),
    (
        a_training_process_is_killed,
        a_training_process_ends_with_exit_code_0,
        connections_break,
        a_node_freezes_and_thaws,
        a_training_process_freezes,
    ),
    (
        the_rendezvous_is_killed_and_then_a_node,
        the_second_node_is_killed_during_a_change,
        the_first_node_is_killed_during_a_change,
        the_only_one_left_is_stuck,
    ),
)
@two_at_once
async def test_live(tmp_path: Path, subtests: Subtests, story: Sequence[Scene[Live]]) -> None:
    async with live(tmp_path) as job:
        for scene in story:
            await play(subtests, scene, job)


@two_at_once
async def test_below_the_minimum_it_waits_in_memory(tmp_path: Path) -> None:
    async with live(tmp_path, minReplicas=3) as job:
        one, two, three = job.nodes.busy()
        stay = job.pids(one, three)
        job.lose(two)
        await job.run.until(lambda: job.run.report.state == "Waiting", "it waits")
        assert job.pids(one, three) == stay
        job.nodes.add()
        await job.has(("lost", 3))
        assert job.pids(one, three) == stay


@two_at_once
async def test_node_killed_while_all_write_snapshots(tmp_path: Path) -> None:
    """What was being written by all may be lost; no other one, and nobody waits for the dead."""
    async with live(tmp_path, IN_PARTS, snapshot="{everySteps: 2}") as job:
        run = job.run
        await run.until(lambda: (run.report.snapshot_step or 0) > 10, "snapshots")
        job.lose("node-1")
        await run.until_stepping(2)
        since = run.report.snapshot_step or 0
        await run.until(lambda: (run.report.snapshot_step or 0) > since + 10, "more of them")
        job.nodes.add()
        await run.until_stepping(3)
    shelf = layout.storage_in(tmp_path / "snapshots", 3)
    newest, *others = shelf.steps()
    assert newest == STEPS
    assert [*shelf.check(newest)["files"]] == [manifest.part_name(rank) for rank in range(3)]
    for step in others:
        shelf.check(step)
    assert layout.left_behind(tmp_path / "snapshots") == []
