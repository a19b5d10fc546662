"""`snapshot.files`: an unchanged script's own files, kept and given to all by real agents."""

from __future__ import annotations

from pathlib import Path

from agent.keeping import keeping, snapshot
from driving import in_background


@in_background
async def test_newcomer_begins_from_the_newest_file(tmp_path: Path) -> None:
    """And so do those who never had it: only the first worker's script writes one."""
    async with keeping(tmp_path, "a b") as job:
        job.workers["a"].write(snapshot(1))
        at = await job.kept()
        job.workers["a"].write(snapshot(2))
        await job.kept(since=at)
        job.worker("c").start()
        await job.expect("a b c")
        assert await job.begun(2, "a b c") == [2, 2, 2]


@in_background
async def test_node_with_the_only_file_is_killed(tmp_path: Path) -> None:
    """Another worker has a copy of it, though its script never saw it."""
    async with keeping(tmp_path, "a b") as job:
        job.workers["a"].write(snapshot(1))
        await job.kept()
        job.workers["a"].kill()
        assert await job.begun(2, "b") == [1]
