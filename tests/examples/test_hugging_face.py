"""Hugging Face's Trainer and Accelerate, and Lightning, unmodified: they go on at another size."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpjob_operator.local.simulated.environment import ENV_FORKSERVER
from ddpjob_protocol.environment import ENV_WARM_IMPORTS
from support.driving import Run, environment, in_background
from support.forked import Forks, forking
from support.forking import imports
from support.own_disks import OwnDisks
from support.playing import EXAMPLES, playing, said, told

FOLDER = EXAMPLES / "13-hugging-face"
STEPS, SAVE_STEPS, RATE = 200, 20, 2e-3
FEWER_EPOCHS = ("cpu]", "cpu, --epochs=30]")
FEWER_STEPS = ("--max_steps=300", f"--max_steps={STEPS}")
IMPORTS = "transformers.trainer accelerate pytorch_lightning"
# Runs the script with one seed after the other.
SEEDS = """
import runpy, sys
script, *arguments = sys.argv[1:]
for seed in ("1", "2", "3"):
    sys.argv = [script, *arguments, f"--seed={seed}", f"--output_dir=output-{seed}"]
    runpy.run_path(script, run_name="__main__")
"""
SLOW = ("        return {", "        __import__('time').sleep(0.01)\n        return {")


def history(output: Path) -> list[dict[str, Any]]:
    """What the Trainer logged, in the last checkpoint."""
    state = json.loads((output / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "learning_rate" in entry]


def held_out_losses(text: str) -> list[float]:
    return [
        float(each) for each in re.findall(rf"after step {STEPS}: held-out loss (\d\.\d+)", text)
    ]


def arguments() -> list[str]:
    """Of the Trainer, in the job file; the size of the batch comes first."""
    text = (FOLDER / "ddpjob.yaml").read_text().replace(*FEWER_STEPS)
    found = re.findall(r"^  - (--\w+=\S+)", text, re.MULTILINE)
    return sorted(found, key=lambda each: not each.startswith("--per_device_train_batch_size="))


@pytest.fixture(autouse=True, scope="module")
def library_forks() -> Iterator[Forks]:
    """These jobs import more than torch in advance: they share a process that has imported it."""
    with (
        forking({**imports(), ENV_WARM_IMPORTS: IMPORTS}) as forks,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(ENV_FORKSERVER, str(forks.path))
        yield forks


@pytest.fixture(scope="module")
def losses(library_forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Held-out, of undisturbed runs with three seeds, in one process with the whole batch."""
    folder, (size, *rest) = tmp_path_factory.mktemp("seeds"), arguments()
    whole = size.replace("=8", "=32")
    assert whole != size
    script, printed = folder / "seeds.py", folder / "printed"
    script.write_text(SEEDS)
    with printed.open("wb") as file:
        command = (script, FOLDER / "train.py", whole, *rest)
        done = library_forks.start(
            *command, env=environment(), folder=folder, output=file, errors=file
        )
        code = done.wait()
    assert code == 0, printed.read_text()[-10000:]
    found = held_out_losses(printed.read_text())
    assert len(found) == 3
    return found


async def lose_a_worker(run: Run, checkpoints: Path, node: str) -> None:
    """After three checkpoints; a worker on another node comes in its place."""
    later = [checkpoints / f"checkpoint-{n}" for n in range(3 * SAVE_STEPS, STEPS, SAVE_STEPS)]
    await run.until(
        lambda: any((each / "trainer_state.json").exists() for each in later), "three checkpoints"
    )
    run.backend.nodes.kill(node)
    await run.until(
        lambda: len(told(run, r"2 processes begin from output/checkpoint-(\d+)")) == 1, "goes on"
    )
    assert await run.finish() == "Complete", run.story()
    ((begun,),) = told(run, r"2 processes begin from output/checkpoint-(\d+)")
    assert begun >= 2 * SAVE_STEPS


def check(run: Run, checkpoints: Path, losses: list[float]) -> None:
    """Every tenth step is logged once, at the rate that belongs to it; what was learned is usual."""
    rates = {entry["step"]: entry["learning_rate"] for entry in history(checkpoints)}
    steps = [entry["step"] for entry in history(checkpoints)]
    assert steps == list(range(10, STEPS + 1, 10))
    expected = {step: RATE * (1 - (step - 1) / STEPS) for step in steps}
    assert rates == pytest.approx(expected)
    spread = max(losses) - min(losses)
    (loss,) = held_out_losses(run.output())
    assert min(losses) - spread <= loss <= max(losses) + spread


def test_trainer_resumes_from_a_shared_mount(tmp_path: Path, losses: list[float]) -> None:
    @in_background
    async def test(folder: Path) -> None:
        async with playing(folder, "13-hugging-face", 2, job=FEWER_STEPS) as run:
            await lose_a_worker(run, folder / "output", "node-0")
            check(run, folder / "output", losses)

    test(tmp_path)


def test_trainer_resumes_though_the_disk_of_rank_0_is_lost(
    tmp_path: Path, losses: list[float]
) -> None:
    """Each node has an `output` of its own; that of the others has but their random numbers.

    The script takes its time: a copy is made when nothing is written for a second.
    """

    @in_background
    async def test(folder: Path) -> None:
        disks, command = OwnDisks(folder), "[torchrun, ../train.py]"
        async with playing(folder, "13-hugging-face", 2, command, disks, SLOW, FEWER_STEPS) as run:
            written = f"output/checkpoint-{SAVE_STEPS}/trainer_state.json"
            await run.until(lambda: any(folder.glob(f"*/{written}")), "a checkpoint")
            lost, other = sorted(
                run.backend.nodes.up, key=lambda n: not (folder / n / written).exists()
            )
            await run.until(lambda: run.report.files is not None, "a copy that is safe")
            await lose_a_worker(run, disks.disk(lost) / "output", lost)
            check(run, disks.disk(other) / "output", losses)

    test(tmp_path)


@in_background
async def test_accelerate_resumes(tmp_path: Path) -> None:
    unfinished = tmp_path / "project/checkpoints/checkpoint_70"  # its writer was killed
    unfinished.mkdir(parents=True)
    (unfinished / "random_states_0.pkl").write_bytes(pickle.dumps({}))
    async with playing(tmp_path, "13-hugging-face/accelerate.yaml", job=FEWER_EPOCHS) as run:
        await said(run, r"epoch 6 ")
        run.backend.nodes.kill("node-0")
        assert await run.finish() == "Complete", run.story()
        ((begun,),) = told(run, r"2 processes begin after epoch (\d+)")
        assert begun >= 4
        assert told(run, r"rank (\d) learnt 3\.000 -2\.000 1\.000") >= {(0,), (1,)}


@in_background
async def test_lightning_resumes(tmp_path: Path) -> None:
    async with playing(tmp_path, "13-hugging-face/lightning.yaml", job=FEWER_EPOCHS) as run:
        await run.until(
            lambda: (0, 5) in told(run, r"rank (\d) of 4 begins epoch (\d+)"), "epoch 5"
        )
        run.backend.nodes.kill("node-1")
        assert await run.finish() == "Complete", run.story()
        begun = min(epoch for _, epoch in told(run, r"rank (\d) of 2 begins epoch (\d+)"))
        assert begun >= 4
        assert told(run, r"rank (\d) learnt 3\.000 -2\.000 1\.000") >= {(0,), (1,)}
