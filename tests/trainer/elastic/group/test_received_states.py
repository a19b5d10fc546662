"""A process that joins receives the state into its model: in no more memory, and whole or not at all."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from support.conducting import until
from support.forked import Forks
from support.ledger import Ledger
from support.nodes import Nodes, nodes

WIDTH = 1024  # of eight layers of 4 MiB, each of which is sent alone
NARROW = 8
NEVER = "-"
MESSAGES = 6  # until a process dies: two of the outline, and some layers
SCRIPT = f"""
import hashlib, json, os, pathlib, signal, socket, sys, torch
from torch import distributed
from ddpjob_trainer import Loop

width, kind, dies_in = int(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3]
ledger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ledger.connect("ledger.sock")
torch.set_num_threads(1)
torch.manual_seed(os.getpid())
net = torch.nn.Sequential(*[torch.nn.Linear(width, width, dtype=kind) for _ in range(8)])
size = sum(each.nbytes for each in net.parameters())
send, receive, sent, before = distributed.isend, distributed.recv, [], []


def sends(*arguments):
    sent.append(os.environ["DDPJOB_MEMBERSHIP"])
    if sent.count(dies_in) == {MESSAGES}:
        os.kill(os.getpid(), signal.SIGKILL)
    work = send(*arguments)
    if sent[-1] == dies_in:
        work.wait()  # so the other process has received it
    return work


def memory(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition(f"{{name}}:")[2].split()[0]) << 10


def tell(what, step, value):
    facts = os.environ["DDPJOB_MEMBERSHIP"], what, step, int(os.environ["RANK"]), 0, os.getpid()
    ledger.send(json.dumps((*facts, value)).encode())


def receives(*arguments):
    if not before:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
        before.append(memory("VmRSS"))
    return receive(*arguments)


distributed.isend, distributed.recv = sends, receives
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loop = Loop(net, optimizer, steps=10**6)
restored = lambda *_: tell("restored", -1, (memory("VmHWM") - before[0]) / size)
net.register_load_state_dict_post_hook(restored)
for step in loop:
    with step:
        batch = torch.full((2, width), 0.1, dtype=kind)
        optimizer.zero_grad()
        loop.model(batch).square().mean().backward()
        optimizer.step()
    if step.done:
        digest = hashlib.sha256(b"".join(each.detach().numpy() for each in net.parameters()))
        tell("done", step.number, digest.hexdigest())
"""


class Trial:
    """Some nodes, and the reports of their processes."""

    def __init__(self, given: Nodes, ledger: Ledger) -> None:
        self.nodes = given
        self._ledger = ledger

    async def until_done_in(self, membership: str, processes: int) -> None:
        """Wait until this number of processes has done a step in the membership."""
        await until(lambda: len(self.done_in(membership)) == processes, f"steps in {membership}")

    def done_in(self, membership: str) -> set[int]:
        """Return the processes that have done a step in the membership."""
        rows = self._ledger.rows()
        return {row.pid for row in rows if row.what == "done" and row.membership == membership}

    def check_replicas(self) -> None:
        """Replicas have equal parameters after each step of a membership."""
        states = collections.defaultdict(set)
        for row in self._ledger.rows():
            if row.what == "done":
                states[row.membership, row.step].add(row.value)
        assert all(len(values) == 1 for values in states.values()), "replicas differ"

    def growth(self) -> list[float]:
        """Return by how many models each process grew while it received the state."""
        return [float(row.value) for row in self._ledger.rows() if row.what == "restored"]


@pytest.fixture
def play(
    forks: Forks, tmp_path: Path, python_env: dict[str, str]
) -> Iterator[Callable[[], contextlib.AbstractAsyncContextManager[Trial]]]:
    (tmp_path / "train.py").write_text(SCRIPT)
    ledger = Ledger(tmp_path)

    @contextlib.asynccontextmanager
    async def trial() -> AsyncIterator[Trial]:
        async with nodes(forks, tmp_path, python_env) as given:
            yield Trial(given, ledger)

    yield trial
    ledger.close()


Play = Callable[[], contextlib.AbstractAsyncContextManager[Trial]]


def test_a_process_that_joins_holds_no_second_model(play: Play) -> None:
    async def join() -> None:
        async with play() as trial:
            first = await trial.nodes.start("train.py", WIDTH, "float32", NEVER)
            await trial.until_done_in(trial.nodes.assign(first), 1)
            new = await trial.nodes.start("train.py", WIDTH, "float32", NEVER)
            await trial.until_done_in(trial.nodes.assign(first, new), 2)
            trial.check_replicas()
            (growth,) = trial.growth()
            assert growth < 0.5, f"it grew by {growth:.2f} times its model"

    asyncio.run(join())


def test_a_state_that_arrived_in_part_is_not_trained(play: Play) -> None:
    async def break_off() -> None:
        async with play() as trial:
            source = await trial.nodes.start("train.py", WIDTH, "float32", "1.1.2")
            await trial.until_done_in(trial.nodes.assign(source), 1)
            new = await trial.nodes.start("train.py", WIDTH, "float32", NEVER)
            trial.nodes.assign(source, new)
            assert await source.end() < 0
            alone = trial.nodes.assign(new)
            await until(lambda: new.has_ended or bool(trial.done_in(alone)), "an end")
            assert not trial.done_in(alone)
            assert await new.end() == 1
            assert "the transfer of a state to this process broke off" in new.output
            assert "training starts over" in new.output

    asyncio.run(break_off())


def test_another_source_replaces_a_state_that_arrived_in_part(play: Play) -> None:
    async def replace() -> None:
        async with play() as trial:
            start, assign = trial.nodes.start, trial.nodes.assign
            source = await start("train.py", WIDTH, "float32", "1.1.3")
            await trial.until_done_in(assign(source), 1)
            other = await start("train.py", WIDTH, "float32", NEVER)
            await trial.until_done_in(assign(source, other), 2)
            new = await start("train.py", WIDTH, "float32", NEVER)
            assign(source, other, new)
            assert await source.end() < 0
            await trial.until_done_in(assign(new, other), 2)
            trial.check_replicas()

    asyncio.run(replace())


@pytest.mark.parametrize(
    ("width", "kind", "words"),
    [(NARROW + 1, "float32", "size mismatch"), (NARROW, "float64", "is torch.float64 here")],
)
def test_a_process_with_another_model_ends_alone(
    play: Play, width: int, kind: str, words: str
) -> None:
    async def join() -> None:
        async with play() as trial:
            first = await trial.nodes.start("train.py", NARROW, "float32", NEVER)
            await trial.until_done_in(trial.nodes.assign(first), 1)
            new = await trial.nodes.start("train.py", width, kind, NEVER)
            trial.nodes.assign(first, new)
            assert await new.end() == 1
            assert words in new.output
            await trial.until_done_in(trial.nodes.assign(first), 1)

    asyncio.run(join())
