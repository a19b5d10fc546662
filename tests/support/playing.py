"""Runs an example as its page describes, in a copy of its folder, so that a test can disturb it."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from ddpjob_operator.local.simulated.networks import NodeNetwork
from support.driving import Run, running

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextlib.asynccontextmanager
async def playing(
    folder: Path,
    path: str,
    nodes: int = 2,
    command: str = "",
    network: NodeNetwork | None = None,
    change: tuple[str, str] = ("", ""),
    job: tuple[str, str] = ("", ""),
) -> AsyncIterator[Run]:
    """The job of an example; `path` names its folder, or a job file in it.

    `change`, `job`: what in its script and in its job file is replaced, and by what.
    """
    file = EXAMPLES / path if path.endswith(".yaml") else EXAMPLES / path / "ddpjob.yaml"
    shutil.copytree(file.parent, folder, dirs_exist_ok=True)
    text = file.read_text()
    assert job[0] in text
    text = re.sub(r"(?m)^  name: .*$", "  name: probe", text.replace(*job), count=1)
    if command:
        text = re.sub(r"(?m)^  command: \[.*$", f"  command: {command}", text, count=1)
    script = (folder / "train.py").read_text()
    assert change[0] in script
    script = script.replace(*change)
    async with running(folder, text, nodes, script, network) as run:
        yield run


async def said(run: Run, pattern: str) -> None:
    """Wait until a process has printed it."""
    await run.until(lambda: re.search(pattern, run.output()) is not None, pattern)


def told(run: Run, pattern: str) -> set[tuple[int, ...]]:
    """The numbers in each line that a process has printed so."""
    found = re.findall(pattern, run.output())
    return {tuple(map(int, [each] if isinstance(each, str) else each)) for each in found}
