"""Every example runs on the local back end, is disturbed there, and computes what it should."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ddpjob_agent.control import Report
from driving import running

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def test_every_example_has_a_test() -> None:
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/ddpjob.yaml")) == [
        "digits",
        "multinode",
    ]


def test_digits_is_the_demo() -> None:
    """tools/demo.py fails by itself unless memberships, steps and accuracy are right."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py"], check=False, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "demo passed" in done.stdout


def test_live_digits_stay_in_memory_while_nodes_come_and_go(tmp_path: Path) -> None:
    """The processes of the first worker never end, and learn as much as undisturbed."""
    text = (EXAMPLES / "digits" / "live.yaml").read_text().replace("digits-live", "probe")
    shutil.copy(EXAMPLES / "digits" / "train_live.py", tmp_path)
    script = (EXAMPLES / "digits" / "train.py").read_text()

    async def body() -> tuple[list[str], Report]:
        async with running(tmp_path, text, 2, script) as run:
            await run.until_stepping(1)
            run.backend.nodes.kill("node-1")
            await run.backend.nodes.add()
            await run.until_stepping(3)
            run.backend.nodes.drain("node-2")
            assert await run.finish() == "Complete"
            return [cause for cause, _ in run.history()], run.report

    causes, report = asyncio.run(body())
    assert causes == ["started", "lost", "joined", "left"]
    assert (report.failures, report.losses) == (0, 1)
    resumed = [each.resumed_step or 0 for each in report.rounds]
    assert resumed == sorted(resumed)
    assert resumed[1] > 0
    assert report.metrics["accuracy"] >= 0.95


def test_multinode_goes_on_from_its_own_file_after_a_killed_node(tmp_path: Path) -> None:
    """An unmodified script in the tutorial's style: `torchrun train.py 50 10`."""
    text = (EXAMPLES / "multinode" / "ddpjob.yaml").read_text()
    text = text.replace("name: multinode", "name: probe")
    shutil.copy(EXAMPLES / "multinode" / "train.py", tmp_path / "train.py")
    script = (tmp_path / "train.py").read_text()
    assert not re.search("import.*ddpjob|DDPJOB", script)

    async def body() -> str:
        async with running(tmp_path, text, 2, script) as run:
            await run.until((tmp_path / "snapshot.pt").exists, "its first snapshot")
            run.backend.nodes.kill("node-1")
            await run.until(lambda: len(run.report.rounds) == 2, "a membership of one")
            assert [cause for cause, _ in run.history()] == ["started", "lost"]
            # Once in a while torch itself aborts a process that has finished (docs/failures.md):
            # the job then starts again, finds all done and completes.
            assert await run.finish() == "Complete", run.story()
            return run.output()

    output = asyncio.run(body())
    (epoch, rest), *_ = re.findall(
        r"rank 0\] resuming after epoch (\d+)(.*?)(?=resuming|\n---|\Z)", output, re.DOTALL
    )
    assert int(epoch) % 10 == 0, "a multiple of its interval"
    done = [int(each) for each in re.findall(r"rank 0\] epoch (\d+)", rest)]
    assert done == list(range(int(epoch) + 1, 51)), "every epoch after it, once"
