"""Trains a task with stock torchrun: all processes start again at every change of their number.

Each group is a torchrun of its own, with as many processes as ddpjob's had, which ends where that
group ended and leaves a snapshot: nothing is ever done twice or lost by a death. So this is the
best that restarting can do.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import Processes
from benchmarks.trials import WORKLOADS, TrialError

from support.equivalence.curves import Section, Trained, read
from support.equivalence.disturbed import Lesson


async def train(
    lesson: Lesson, sections: Sequence[Section], steps: int, *, divides: bool
) -> Trained:
    """Train the steps of these sections. `divides`: the script shares out one batch by itself."""
    with tempfile.TemporaryDirectory(prefix="ddpjob-bench-") as name:
        folder = Path(name)
        processes = Processes(folder)
        try:
            for section, end in zip(sections, _ends(sections, steps), strict=True):
                torchrun = await processes.run([
                    "torchrun", "--standalone", f"--nproc-per-node={section.world_size}",
                    WORKLOADS / "stock_task.py", folder, lesson.task, f"--seed={lesson.seed}",
                    f"--until={end}", *(["--divide"] if divides else []), *(["--last"] if end == steps else []),
                ])  # fmt: skip
                if await torchrun.wait() != 0:
                    raise TrialError(f"torchrun failed\n{_logs(folder)[-5000:]}")
        finally:
            await processes.stop()
        return read(folder)


def _ends(sections: Sequence[Section], steps: int) -> list[int]:
    return [*(after.first for _, after in itertools.pairwise(sections)), steps]


def _logs(folder: Path) -> str:
    return "\n".join(log.read_text() for log in sorted(folder.glob("*.log")))
