"""Examples that train in different ways: each loses a node, goes on, and computes right."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.driving import environment, in_background
from support.forked import Forks
from support.playing import EXAMPLES, playing, said, told

EPOCHS = 12
AVERAGED = f"[torchrun, train.py, --epochs={EPOCHS}]"
LOSS = r"rank (\d) of {} \| epoch (\d+) \| loss (\d+\.\d{{12}})"


def losses(output: str, world: int) -> dict[int, set[float]]:
    """What the ranks say, by epoch."""
    found: dict[int, set[float]] = {}
    for _, epoch, loss in re.findall(LOSS.format(world), output):
        found.setdefault(int(epoch), set()).add(float(loss))
    return found


def test_gradients_averaged_by_hand_are_those_of_the_whole_batch(
    tmp_path: Path, job_forks: Forks
) -> None:
    """30 samples over 4 processes are 8, 8, 8 and 6, and the loss is that of one process."""
    script, printed = EXAMPLES / "09-averaged-by-hand" / "train.py", tmp_path / "alone"
    with printed.open("wb") as file:
        alone = job_forks.torchrun(
            "--standalone",
            script,
            f"--epochs={EPOCHS}",
            env=environment(),
            output=file,
            errors=file,
        )
        alone.wait()
    expected = losses(printed.read_text(), world=1)
    assert sorted(expected) == list(range(1, EPOCHS + 1)), printed.read_text()
    assert min(expected[EPOCHS]) < min(expected[1])

    async def body() -> str:
        async with playing(tmp_path, "09-averaged-by-hand", command=AVERAGED) as run:
            await said(run, r"rank 0 of 4 \| epoch 5 ")
            run.backend.nodes.kill("node-1")
            assert await run.finish() == "Complete", run.story()
            shares = r"rank (\d) of {} has (\d+) of 30"
            assert told(run, shares.format(4)) == {(0, 8), (1, 8), (2, 8), (3, 6)}
            assert told(run, shares.format(2)) == {(0, 15), (1, 15)}
            return run.output()

    output = asyncio.run(body())
    for world, least in ((4, 5), (2, EPOCHS)):
        found = losses(output, world)
        assert len(found) >= least
        for epoch, values in found.items():
            (value,) = values  # the same on all ranks
            assert value == pytest.approx(min(expected[epoch]), rel=1e-6)


@in_background
async def test_gpt_learns_on_in_the_same_processes(tmp_path: Path) -> None:
    async with playing(tmp_path, "16-gpt", command="[torchrun, train.py, --steps=300]") as run:
        await run.until_stepping(1)
        run.backend.nodes.kill("node-1")
        await run.until_stepping(2)
        run.backend.nodes.add()
        await run.until_stepping(3)
        assert await run.finish() == "Complete", run.story()
        assert [cause for cause, _ in run.history()] == ["started", "lost", "joined"]
        assert run.report.failures == 0
        assert run.report.repeated_steps == 0
        assert run.report.metrics["held_out"] < 2.6, "knows more than how frequent each letter is"


@pytest.mark.parametrize(("precision", "name"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_mixed_precision_keeps_the_state_of_its_scaler(
    tmp_path: Path, precision: str, name: str
) -> None:
    command = f"[torchrun, train.py, --precision={precision}, --compress]"

    @in_background
    async def test(folder: Path) -> None:
        async with playing(folder, "20-mixed-precision", command=command) as run:
            await run.until_stepping(1)
            await run.until(lambda: (run.report.snapshot_step or 0) >= 100, "snapshots")
            run.backend.nodes.kill("node-1")
            assert await run.finish() == "Complete", run.story()
            assert f"computed in torch.{name} |" in run.output()
            assert run.report.metrics["accuracy"] > 0.9
            begun = told(run, r"of 1 \| step (\d+) \| scale (\d+)")
            assert all(step >= 100 and step % 50 == 0 for step, _ in begun)
            scales = {scale for _, scale in begun}
            assert min(scales) > 1024 if precision == "fp16" else scales == {1}, "it had grown"

    test(tmp_path)


@in_background
async def test_fsdp_parts_are_loaded_by_another_number_of_processes(tmp_path: Path) -> None:
    """Each holds its part of the model, and what was saved is what was loaded."""
    async with playing(tmp_path, "12-fsdp") as run:
        await said(run, "saved step 60 ")
        run.backend.nodes.kill("node-1")
        assert await run.finish() == "Complete", run.story()
        output = run.output()
        (accuracy,) = re.findall(r"accuracy (\d\.\d+)", output)
        assert float(accuracy) > 0.9
    holds = r"rank (\d) of {} holds (\d+) of (\d+) \| step (\d+) \| (\d+\.\d{{6}})"
    begun = {world: re.findall(holds.format(world), output) for world in (4, 2)}
    for world, rows in begun.items():
        parts = {int(rank): int(mine) for rank, mine, *_ in rows}
        whole = int(rows[0][2])
        assert sorted(parts) == list(range(world))
        assert sum(parts.values()) == whole
        assert max(parts.values()) < 1.3 * whole / world
    ((step, loss),) = {(int(step), float(loss)) for *_, step, loss in begun[2]}
    assert step >= 60
    assert step % 20 == 0
    saved = {
        int(at): float(value)
        for at, value in re.findall(r"saved step (\d+) \| (\d+\.\d{6})", output)
    }
    assert loss == pytest.approx(saved[step], rel=1e-4)


def test_scaling_reports_speed_from_one_process_to_many(tmp_path: Path) -> None:
    """The batch stays what it is, or grows with the processes; a table and a plot tell the speed."""
    script = EXAMPLES / "18-scaling" / "scaling.py"
    for flags, batches in (((), ["64", "64"]), (("--per-process",), ["64", "128"])):
        command = [sys.executable, script, "1x1", "2x1", "--steps=40", *flags]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, check=False, text=True
        )
        assert done.returncode == 0, done.stderr
        rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:4]]
        assert [row[0] for row in rows] == ["1x1", "2x1"]
        assert [row[1] for row in rows] == batches
        speeds, gains = ([float(row[at]) for row in rows] for at in (2, 3))
        assert gains == pytest.approx([1, speeds[1] / speeds[0]], abs=0.02)
        assert float(rows[1][4].strip("%")) == pytest.approx(50 * gains[1], abs=1)
        assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_data_of_a_volume_is_read_once_per_epoch(tmp_path: Path) -> None:
    """By all processes together, from files that nobody copies."""
    data = tmp_path / "data"
    data.mkdir()
    make = EXAMPLES / "22-data-volume" / "make_data.py"
    subprocess.run([sys.executable, make, data], check=True)
    images = np.concatenate([np.load(path) for path in data.glob("images-*.npy")])
    files = {path: path.stat().st_mtime_ns for path in data.iterdir()}

    async def body() -> set[tuple[str, ...]]:
        async with playing(tmp_path, "22-data-volume/local.yaml") as run:
            await said(run, r"2 processes \| epoch 1 ")
            run.backend.nodes.kill("node-1")
            assert await run.finish() == "Complete", run.story()
            line = r"(\d) processes \| epoch (\d+) \| read (\d+) images of 4 files \| light (\S+)"
            return set(re.findall(line, run.output()))

    rows = asyncio.run(body())
    assert {(world, epoch) for world, epoch, *_ in rows if world == "1"} == {
        ("1", f"{epoch}") for epoch in range(1, 21)
    }
    assert {world for world, *_ in rows} == {"1", "2"}
    for _, _, count, light in rows:
        assert int(count) == len(images)
        assert float(light) == pytest.approx((images / 255).mean((1, 2)).sum(), abs=0.01)
    assert {path: path.stat().st_mtime_ns for path in data.iterdir()} == files


@in_background
async def test_network_is_measured_between_all_processes(tmp_path: Path) -> None:
    async with playing(tmp_path, "17-network", nodes=2) as run:
        assert await run.finish() == "Complete", run.story()
        found = told(run, r"4 processes \| (\d+) MB \| \d+\.\d+ ms \| \d+\.\d+ GB/s")
        assert found == {(1,), (16,), (64,)}
