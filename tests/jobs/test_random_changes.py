"""Level L2 as a property: whatever comes and goes, and in whichever order, training is the same.

A seed makes a sequence of events; they happen to a job on nodes with networks of their own. The
next one comes when the job steps again with all that it should have, some in the midst of a
change. DDPJOB_SEEDS="4 5" chooses seeds, DDPJOB_EVENTS how long a sequence is. Needs root, as it
drops packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from ddpjob_operator.local.simulated.pods import SimulatedPod
from ddpjob_protocol.environment import ENV_PROCESSES
from ddpjob_protocol.messages.control import ServiceState
from support.beside import two_at_once
from support.driving import Run, job_text, running
from support.ledger import SCRIPT, SLOWLY, Ledger
from support.networks import Networks, networks

SEEDS = [int(seed) for seed in os.environ.get("DDPJOB_SEEDS", "1 2").split()]
LONG = 32  # events of a sequence in which everything happens
EVENTS = int(os.environ.get("DDPJOB_EVENTS", "10"))
NODES = 4  # at most; each has one worker
STEPS = 26 * EVENTS

COMMAND = f"[torchrun, train.py, end, '{STEPS}']"
GROUPS = ", ".join(
    f"{{name: {name}, replicas: 1, processesPerWorker: {processes}, command: {COMMAND}}}"
    for name, processes in (("two", 2), ("three", 3))
)
SPEC = {
    "processesPerWorker": 1,
    "elastic": "{settleSeconds: 0.2}",
    "failurePolicy": "{backoffSeconds: 0.1, maxRestarts: {application: 100}}",
}

# All processes start alike, so that runs can be compared.
CHANGES = {
    "torch.manual_seed(os.getpid())": "torch.manual_seed(1)",
    SLOWLY: f"time.sleep(0.1 * 2 ** (step.number / {6 * EVENTS}))",
}

HARM = ("kill", "drain", "freeze", "cut", "process", "agent")
HARM_TO_COMERS = ("kill", "freeze", "cut")
REMEDY = {"frozen": "thaw", "cut": "mend"}
OUTCOME = {"freeze": "frozen", "cut": "cut", "thaw": "in", "mend": "in"}
MIDST = ("at once", "when it is noticed", "when a membership is formed")


class Event(NamedTuple):
    """One thing that happens, to a node or to the rendezvous service."""

    action: str
    node: str
    midst: str = ""  # of the change that the event before led to; else after it

    def __str__(self) -> str:
        return f"{self.midst and f'  {self.midst}: '}{self.action} {self.node}"


class Fate:
    """Draws events; knows what each one leaves. One member with the state always stays."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._made = NODES
        self._nodes = {f"node-{i}": "in" for i in range(NODES)}  # in | frozen | cut
        self._used: Counter[str] = Counter()

    def events(self, count: int) -> list[Event]:
        """So many, and then those that bring all silent nodes back."""
        found: list[Event] = []
        while len(found) < count:
            stay = {name for name, state in self._nodes.items() if state == "in"}
            before = dict(self._nodes)
            first = self._draw(stay, comer="")
            found.append(first)
            changes = not (first.action == "kill" and before[first.node] != "in")
            if changes and self._chance.random() < 0.3:
                second = self._draw(stay - {first.node}, comer=first.node)
                is_service = first.action == "rendezvous"
                midst = MIDST[0] if is_service else self._chance.choice(MIDST)
                found.append(second._replace(midst=midst))
        silent = [(name, state) for name, state in self._nodes.items() if state != "in"]
        return [*found, *(Event(REMEDY[state], name) for name, state in silent)]

    def _draw(self, stay: set[str], comer: str) -> Event:
        """What was rare comes sooner."""
        options = list(self._options(stay, comer))
        weights = [1 / (1 + self._used[event.action]) ** 2 for event in options]
        [event] = self._chance.choices(options, weights)
        self._used[event.action] += 1
        if event.action in ("kill", "drain"):
            del self._nodes[event.node]
        elif event.action == "join":
            self._made += 1
            self._nodes[event.node] = "in"
        elif event.action in OUTCOME:
            self._nodes[event.node] = OUTCOME[event.action]
        return event

    def _options(self, stay: set[str], comer: str) -> Iterator[Event]:
        for name, state in self._nodes.items():
            if state != "in":
                yield from (Event(REMEDY[state], name), Event("kill", name))
            elif stay - {name}:
                yield from (Event(a, name) for a in (HARM_TO_COMERS if name == comer else HARM))
        if len(self._nodes) < NODES:
            yield Event("join", f"node-{self._made}")
        yield Event("rendezvous", "")


class Story:
    """One run of the job, and what happens to it."""

    def __init__(self, run: Run, ledger: Ledger, net: Networks) -> None:
        self._run = run
        self._ledger = ledger
        self._net = net
        self._silent: set[str] = set()
        self._dead_boot = 0  # of the service that was killed last
        self._seen = 0  # rows before the last event

    async def happen(self, event: Event) -> None:
        """Do it, once what it is to wait for is there."""
        if not event.midst:
            await self.settled()
        elif event.midst != MIDST[0]:
            known = self._known(event.midst)
            await self._run.until(lambda: self._known(event.midst) != known, event.midst)
        self._seen = len(self._ledger.rows())
        await self._do(event)

    async def settled(self) -> None:
        """All that should train do, and nobody else."""
        await self._run.until(self._is_settled, "all that can be reached step together")

    def _known(self, midst: str) -> object:
        report = self._run.report
        current = report.membership.id if report.membership else None
        return current if midst == MIDST[2] else (current, report.workers, report.boot)

    def _is_settled(self) -> bool:
        nodes, report = self._run.backend.nodes, self._run.backend.report
        if not report or report.boot <= self._dead_boot or report.state != ServiceState.RUNNING:
            return False
        assert report.membership is not None
        reached = [nodes.on(node) for node in nodes.up if node not in self._silent]
        pods = [pod for pod in reached if pod is not None]
        members = [each.worker for each in report.membership.members]
        if len(pods) < len(reached) or sorted(pod.name for pod in pods) != sorted(members):
            return False
        current = str(report.membership.id)
        rows = self._ledger.rows()[self._seen :]
        stepped = {row.pid for row in rows if row.what == "done" and row.membership == current}
        return all(self._trains(pod, stepped) for pod in pods)

    def _trains(self, pod: SimulatedPod, stepped: set[int]) -> bool:
        pids = training_processes(pod)
        return len(pids) == int(pod.environment[ENV_PROCESSES]) and set(pids) <= stepped

    async def _do(self, event: Event) -> None:
        node, backend = event.node, self._run.backend
        match event.action:
            case "join":
                assert backend.nodes.add() == node
            case "kill":
                backend.nodes.kill(node)
            case "drain":
                backend.nodes.drain(node)
            case "agent":
                backend.nodes.kill_agent(node)
            case "process":
                os.kill(training_processes(backend.nodes.on(node))[-1], signal.SIGKILL)
            case "freeze":
                backend.nodes.signal(node, signal.SIGSTOP)
            case "thaw":
                backend.nodes.signal(node, signal.SIGCONT)
            case "cut":
                self._net.cut(node)
            case "mend":
                self._net.mend(node)
            case "rendezvous":
                backend.service.kill()
                self._dead_boot = self._run.report.boot  # killed twice at once, it dies once
        if event.action in ("freeze", "cut"):
            self._silent.add(node)
        else:
            self._silent.discard(node)


def training_processes(pod: SimulatedPod | None) -> list[int]:
    """Their process ids; torchrun is none of them."""
    assert pod is not None
    assert pod.process is not None
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pod.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = child.cmdline()
                if "train.py" in words[1:2] or words[1:3] == ["-u", "train.py"]:
                    found.append(child.pid)
    return found


def script() -> str:
    text = SCRIPT
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new)
    return text


async def train(
    folder: Path, spec: dict[str, object], nodes: int, events: Sequence[Event], net: Networks | None
) -> list[float]:
    """The parameters at the end, which are the same in all processes."""
    ledger = Ledger(folder)
    try:
        text = job_text(COMMAND, **SPEC, **spec)
        async with running(folder, text, nodes, script(), net) as run:
            await tell(run, ledger, net, events)
            assert await run.finish() == "Complete", run.story()
            assert run.report.live
        ledger.check(STEPS)
        finals = ledger.finals()
        assert finals
        assert all(final == finals[0] for final in finals), "all processes end with the same state"
        return finals[0]["weights"]
    finally:
        ledger.close()


async def tell(run: Run, ledger: Ledger, net: Networks | None, events: Sequence[Event]) -> None:
    if net is None:
        return
    story = Story(run, ledger, net)
    for number, event in enumerate(events, 1):
        try:
            await story.happen(event)
        except BaseException as error:
            error.add_note(f"that was before event {number}: {event}")
            raise
    await story.settled()


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest one of any parameter."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


class Undisturbed(NamedTuple):
    """What training comes to when nothing happens, and how far runs differ in it."""

    weights: list[float]
    tolerance: float


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Of 1, 2 and 3 workers, at the same time."""

    async def one(workers: int) -> list[float]:
        folder = tmp_path_factory.mktemp(f"undisturbed-{workers}")
        (folder / "end").touch()
        return await train(folder, {"replicas": workers}, workers, (), None)

    async def all_three() -> list[list[float]]:
        return await asyncio.gather(*map(one, (1, 2, 3)))

    finals = asyncio.run(all_three())
    most = max(difference(a, b) for a, b in itertools.combinations(finals, 2))
    return Undisturbed(finals[0], 2 * most)


def test_undisturbed_runs_agree(undisturbed: Undisturbed) -> None:
    """But for the order of sums: a step too many would change much more."""
    assert 0 < undisturbed.tolerance < 1e-5


async def play(folder: Path, undisturbed: Undisturbed, events: Sequence[Event]) -> None:
    """Let these events happen to a job on four nodes, and compare what it comes to."""
    spec = {"replicas": 2, "minReplicas": 1, "extraWorkerGroups": f"[{GROUPS}]"}
    try:
        with networks() as net:
            weights = await train(folder, spec, NODES, events, net)
        assert difference(weights, undisturbed.weights) <= undisturbed.tolerance
    except BaseException as error:
        told = "\n".join(f"{number:3} {event}" for number, event in enumerate(events, 1))
        error.add_note(f"all events:\n{told}")
        raise


@pytest.mark.parametrize("seed", SEEDS)
@two_at_once
async def test_random_changes(tmp_path: Path, undisturbed: Undisturbed, seed: int) -> None:
    """Again: DDPJOB_SEEDS=<seed> pytest tests/jobs/test_random_changes.py."""
    await play(tmp_path, undisturbed, Fate(seed).events(EVENTS))


@two_at_once
async def test_cut_off_again_while_it_comes_back(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Memberships pass that it never hears of; it must not wait for the end of a dead one."""
    again = (Event("mend", "node-3"), Event("cut", "node-3", "when a membership is formed"))
    await play(tmp_path, undisturbed, [Event("cut", "node-3"), *5 * again, Event("mend", "node-3")])


@pytest.mark.parametrize("seed", range(50))
def test_a_sequence_is_fair(seed: int) -> None:
    """The same again; enough of everything."""
    events = Fate(seed).events(LONG)
    assert events == Fate(seed).events(LONG)
    assert len(events) >= 30
    used = Counter(event.action for event in events)
    assert all(used[action] for action in ("join", *HARM, "rendezvous"))
    assert any(used[action] for action in REMEDY.values())
    assert any(event.midst for event in events)
