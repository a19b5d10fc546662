"""The first example: the demo, and the same training in processes that stay."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

from ddpjob_protocol.messages.control import Report
from support.driving import environment, running

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def test_digits_is_the_demo() -> None:
    """tools/demo.py fails by itself unless memberships, steps and accuracy are right.

    All of its 2000 steps are done by `make soak`.
    """
    command = [sys.executable, str(ROOT / "tools" / "demo.py"), "--steps=800"]
    done = subprocess.run(
        command, env=environment(), check=False, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "demo passed" in done.stdout


def test_live_digits_stay_in_memory_while_nodes_come_and_go(tmp_path: Path) -> None:
    """The processes of the first worker never end, and learn as much as undisturbed."""
    text = (EXAMPLES / "digits" / "live.yaml").read_text().replace("digits-live", "probe")
    text = text.replace("train_live.py]", "train_live.py, --steps=1000]")
    shutil.copy(EXAMPLES / "digits" / "train_live.py", tmp_path)
    script = (EXAMPLES / "digits" / "train.py").read_text()

    async def body() -> tuple[list[str], Report]:
        async with running(tmp_path, text, 2, script) as run:
            await run.until_stepping(1)
            run.backend.nodes.kill("node-1")
            run.backend.nodes.add()
            await run.until_stepping(3)
            run.backend.nodes.drain("node-2")
            assert await run.finish() == "Complete"
            return [cause for cause, _ in run.history()], run.report

    causes, report = asyncio.run(body())
    assert causes == ["started", "lost", "joined", "left"]
    assert (report.failures, report.losses) == (0, 1)
    resumed = [each.resumed_step or 0 for each in report.memberships]
    assert resumed == sorted(resumed)
    assert resumed[1] > 0
    assert report.metrics["accuracy"] >= 0.95
