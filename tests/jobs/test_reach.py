"""Workers that reach the job's service, but not each other: who cannot reach whom is told."""

from __future__ import annotations

from pathlib import Path

from support.beside import two_at_once
from support.driving import SCRIPT, Run, job_text, running
from support.networks import networks


def told(run: Run) -> set[str]:
    """What the status says of it."""
    warnings = run.backend.status.warnings
    return {f"{w.worker} {w.message.split(';')[0]}" for w in warnings if w.reason == "Unreachable"}


@two_at_once
async def test_pair_that_cannot_talk_is_named(tmp_path: Path) -> None:
    text = job_text("[python3, train.py, end]", processesPerWorker=1, launcher="python")
    with networks() as net:
        for node in ("node-0", "node-1", "node-2"):
            net.namespace(node)
        net.part("node-0", "node-2")
        async with running(tmp_path, text, nodes=3, script=SCRIPT, network=net) as run:
            nodes = run.backend.nodes
            await run.until(lambda: len(told(run)) == 2, "both sides are told of")
            name = {node: pod.name for node in nodes.up if (pod := nodes.on(node))}
            one, other = name["node-0"], name["node-2"]
            assert told(run) == {f"{one} cannot reach {other}", f"{other} cannot reach {one}"}
            assert "Unreachable" in run.console.getvalue()
            assert await run.finish() == "Complete", run.story()


@two_at_once
async def test_nothing_is_told_where_all_can_talk(tmp_path: Path) -> None:
    text = job_text("[python3, train.py, end]", processesPerWorker=1, launcher="python")
    with networks() as net:
        async with running(tmp_path, text, nodes=3, script=SCRIPT, network=net) as run:
            await run.until_stepping(1, steps=20)
            assert not told(run)
            assert await run.finish() == "Complete", run.story()
            assert "Unreachable" not in run.console.getvalue()
