"""Stops, breaks and evaluations of a script, in two real processes with an agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ddpjob_protocol.environment import ENV_LEFT_STATE
from support.forked import Forks
from support.live_worker import live_worker

STOP = """
loop = Loop(net, optimizer, steps=1000)
for step in loop:
    with step:
        train(loop, step)
        if WHERE == "within" and step.number == 20 and step.rank in RANKS:
            loop.stop()
    if WHERE == "between" and step.number == 20 and step.rank in RANKS:
        loop.stop()
tell(done=step.number + 1, weight=net.weight.item())
"""


@pytest.mark.parametrize(
    ("ranks", "where"), [("{0}", "within"), ("{1}", "between"), ("{0, 1}", "between")]
)
def test_a_stop_on_any_rank_ends_the_loop_after_the_same_step_on_all(
    forks: Forks, tmp_path: Path, ranks: str, where: str
) -> None:
    async def body() -> None:
        script = f"RANKS, WHERE = {ranks}, {where!r}\n{STOP}"
        async with live_worker(tmp_path, forks, script, DDPJOB_SNAPSHOT_DIR="snapshots") as worker:
            assert await worker.codes() == [0, 0], worker.story()
            (first,), (second,) = worker.rows(0), worker.rows(1)
            assert first == second
            assert 20 < first["done"] < 1000
            assert worker.finished() == 2
            names = [path.name for path in (tmp_path / "snapshots").iterdir()]
            assert any(str(first["done"]) in name for name in names), names

    asyncio.run(body())


STOP_AND_CHANGE = """
loop = Loop(net, optimizer, steps=1000)
for step in loop:
    with step:
        train(loop, step)
        if step.number == CHANGE and step.rank == 1 and not pathlib.Path("go").exists():
            wait_for("go")
            dist.all_reduce(torch.ones(1))
    if step.number == 20 and step.rank == RANK and step.done:
        loop.stop()
tell(done=step.number + 1, weight=net.weight.item())
"""


@pytest.mark.parametrize(("rank", "change"), [(0, 21), (1, 20)])
def test_a_stop_survives_a_change(forks: Forks, tmp_path: Path, rank: int, change: int) -> None:
    async def body() -> None:
        script = f"RANK, CHANGE = {rank}, {change}\n{STOP_AND_CHANGE}"
        async with live_worker(tmp_path, forks, script) as worker:
            await worker.until((tmp_path / "waits-go").exists, "the step")
            worker.assign(2)
            (tmp_path / "go").touch()
            assert await worker.codes() == [0, 0], worker.story()
            (first,), (second,) = worker.rows(0), worker.rows(1)
            assert first == second
            assert 21 <= first["done"] < 1000

    asyncio.run(body())


BREAK = """
loop = Loop(net, optimizer, steps=1000)
for step in loop:
    with step:
        train(loop, step)
    if step.number == 20 and step.rank in RANKS:
        break
tell(done=step.number + 1)
"""


def test_a_break_on_all_ranks_saves_the_last_step(forks: Forks, tmp_path: Path) -> None:
    async def body() -> None:
        script = "RANKS = {0, 1}" + BREAK
        async with live_worker(tmp_path, forks, script, DDPJOB_SNAPSHOT_DIR="snapshots") as worker:
            assert await worker.codes() == [0, 0], worker.story()
            assert worker.rows(0) == worker.rows(1) == [{"done": 21}]
            assert worker.finished() == 2
            assert any("21" in path.name for path in (tmp_path / "snapshots").iterdir())

    asyncio.run(body())


def test_a_break_on_one_rank_is_an_error_with_the_remedy(forks: Forks, tmp_path: Path) -> None:
    async def body() -> None:
        patience = (
            "from ddpjob_trainer.elastic.control import left_loop\nleft_loop.LEFT_SECONDS = 1\n"
        )
        script = patience + "RANKS = {1}" + BREAK
        async with live_worker(tmp_path, forks, script) as worker:
            broken = worker.programs[1]
            await worker.until(lambda: broken.poll() is not None, "the rank has ended")
            assert broken.poll() == 1
            errors = (tmp_path / "errors-1").read_text()
            assert "RuntimeError: rank 1 left the loop after step 21 by break" in errors
            assert "Call loop.stop() instead" in errors
            assert worker.rows(1) == []

    asyncio.run(body())


@pytest.mark.parametrize("end", ["raise ValueError('my own mistake')", "sys.exit(3)"])
def test_an_error_between_two_steps_is_no_break(forks: Forks, tmp_path: Path, end: str) -> None:
    async def body() -> None:
        script = "RANKS = {1}" + BREAK.replace("break\n", f"{end}\n")
        async with live_worker(tmp_path, forks, script) as worker:
            ended = worker.programs[1]
            await worker.until(lambda: ended.poll() is not None, "the rank has ended")
            assert ended.poll() == (3 if "exit" in end else 1)
            assert worker.finished() == 0
            errors = (tmp_path / "errors-1").read_text()
            assert "left the loop" not in errors
            assert "exit" in end or "ValueError: my own mistake" in errors

    asyncio.run(body())


EVALUATE = """
loop = Loop(net, optimizer, steps=60)
ends = None
for step in loop:
    with step:
        train(loop, step)
    if step.number == 10 and step.done:
        with loop.evaluate() as evaluation:
            tell(training=net.training, grad=torch.is_grad_enabled())
            if EVALUATES == "alone":
                if step.rank == 0:
                    loop.model(torch.ones(1, 1))
                    wait_for("go")
            else:
                if step.rank == 0:
                    wait_for("go")
                dist.all_reduce(torch.ones(1))
        tell(done=evaluation.done, training=net.training)
tell(weight=net.weight.item(), steps=step.number + 1)
"""
STUCK_SECONDS = 3.0  # a process reports its position once a second


@pytest.mark.parametrize("evaluates", ["alone", "together"])
def test_a_change_during_an_evaluation(forks: Forks, tmp_path: Path, evaluates: str) -> None:
    """An evaluation may take longer than a broken step may hang; alone it is done to its end."""

    async def body() -> None:
        script = f"EVALUATES = {evaluates!r}{EVALUATE}"
        async with live_worker(tmp_path, forks, script, STUCK_SECONDS) as worker:
            await worker.until((tmp_path / "waits-go").exists, "an evaluation")
            worker.assign(2)
            clock = asyncio.get_running_loop()
            until = clock.time() + 2 * STUCK_SECONDS
            await worker.until(lambda: clock.time() > until, "it takes long")
            assert not worker.stuck, worker.story()
            (tmp_path / "go").touch()
            assert await worker.codes() == [0, 0], worker.story()
            for rank in range(2):
                begun, ended, end = worker.rows(rank)
                assert begun == {"training": False, "grad": False}
                assert ended == {"done": evaluates == "alone", "training": True}
                assert end == {"weight": worker.rows(0)[2]["weight"], "steps": 60}

    asyncio.run(body())


def test_a_process_that_hangs_in_a_step_is_named_with_its_line(
    forks: Forks, tmp_path: Path
) -> None:
    async def body() -> None:
        script = """
        loop = Loop(net, optimizer, steps=60)
        for step in loop:
            with step:
                train(loop, step)
                if step.number == 10 and step.rank == 0:
                    wait_for("ever")
        """
        left = {ENV_LEFT_STATE: str(tmp_path / "left")}
        async with live_worker(tmp_path, forks, script, STUCK_SECONDS, **left) as worker:
            await worker.until((tmp_path / "waits-ever").exists, "it hangs")
            worker.assign(2)
            await worker.until(lambda: bool(worker.stuck), "it is given up")
            (text,) = [m["message"] for m in worker.messages if m["type"] == "warning"]
            assert "train.py:" in text
            assert "in wait_for" in text
            assert "after 3 s (elastic.stuckSeconds)" in text
            assert "from its state at step 11" in text
            (tmp_path / "ever").touch()

    asyncio.run(body())
