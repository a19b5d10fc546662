"""`snapshot.files`: an unchanged script's own files, kept and given to all by real agents."""

from __future__ import annotations

import asyncio
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agent.file_sync.keeping import FILE, PATIENCE_SECONDS, POLICY, keeping, snapshot
from support.command import on_small_disk
from support.driving import in_background


@in_background
async def test_newcomer_begins_from_the_newest_file(tmp_path: Path) -> None:
    """Workers without a copy get it, too: only the first worker's script writes one."""
    async with keeping(tmp_path, "a b") as job:
        job.workers["a"].write(snapshot(1))
        at = await job.kept()
        job.workers["a"].write(snapshot(2))
        await job.kept(since=at)
        job.worker("c").start()
        await job.expect("a b c")
        assert await job.begun(2, "a b c") == [2, 2, 2]


@in_background
async def test_directory_with_an_empty_marker_is_replicated(tmp_path: Path) -> None:
    async with keeping(tmp_path, "a b", start=False) as job:
        for name in "ab":
            job.worker(name, ["ckpt", FILE]).start()
        assert await job.begun(1, "a b") == [None, None]
        a, b = job.workers["a"], job.workers["b"]
        (a.folder / "ckpt").mkdir()
        a.write(snapshot(1), "ckpt/model.pt")
        a.write(b"", "ckpt/_SUCCESS")
        a.write(snapshot(1))
        await job.kept()
        a.kill()
        assert await job.begun(2, "b") == [1]
        assert (b.read("ckpt/model.pt"), b.read("ckpt/_SUCCESS")) == (snapshot(1), b"")


@in_background
async def test_node_with_the_only_file_is_killed(tmp_path: Path) -> None:
    """Another worker has a copy of it, though its script never saw it."""
    async with keeping(tmp_path, "a b") as job:
        job.workers["a"].write(snapshot(1))
        await job.kept()
        job.workers["a"].kill()
        assert await job.begun(2, "b") == [1]


@in_background
async def test_torn_file_is_restored(tmp_path: Path) -> None:
    """The writer is killed in the middle; all workers resume from the earlier copy."""
    async with keeping(tmp_path, "a b") as job:
        a = job.workers["a"]
        a.write(snapshot(1))
        await job.kept()
        a.write(snapshot(2)[:1000])
        job.workers["b"].kill()
        assert await job.begun(2, "a") == [1]
        assert a.read() == snapshot(1)
        assert a.says("snapshot.pt is not whole: its directory of entries is missing")


@in_background
async def test_torn_file_of_which_there_is_no_copy_is_put_aside(tmp_path: Path) -> None:
    async with keeping(tmp_path, "a b") as job:
        a = job.workers["a"]
        a.write(snapshot(1)[:1000])
        job.workers["b"].kill()
        assert await job.begun(2, "a") == [None]
        assert a.read(".snapshot.pt.ddpjob-aside") == snapshot(1)[:1000]


@in_background
async def test_file_that_was_whole_just_before_an_unplanned_end_counts(tmp_path: Path) -> None:
    """The file was never quiet for long enough, but its writer is dead now."""
    async with keeping(tmp_path, "a b") as job:
        a = job.workers["a"]
        a.write(snapshot(1))
        await job.kept()
        a.write(snapshot(2))
        job.workers["b"].kill()
        assert await job.begun(2, "a") == [2]


@pytest.mark.parametrize("change", ["left", "joined"])
def test_planned_change_waits_for_a_write(tmp_path: Path, change: str) -> None:
    """The writer is the worker that leaves, or a worker that stays."""

    async def body() -> None:
        async with keeping(tmp_path, "a b") as job:
            a = job.workers["a"]
            a.write(snapshot(1))
            await job.kept()
            await a.save_half(snapshot(2))
            if change == "left":
                await job.expect("b", draining="a")
                a.process.terminate()
            else:
                job.worker("c").start()
                await job.expect("a b c")
            await job.formed(2)
            await job.workers["b"].stopped()  # so would that of a be
            (a.folder / "finish").touch()
            members = "b" if change == "left" else "a b c"
            assert set(await job.begun(2, members)) == {2}
            if change == "left":
                assert a.process.wait(PATIENCE_SECONDS) == 143

    asyncio.run(body())


@in_background
async def test_only_worker_leaves_and_its_successor_comes(tmp_path: Path) -> None:
    """The worker stays until its successor has the copy that only the worker had."""
    async with keeping(tmp_path, "a") as job:
        job.workers["a"].write(snapshot(1))
        await job.kept()
        await job.expect("b", draining="a")
        job.workers["a"].process.terminate()
        job.worker("b").start()
        assert await job.begun(2, "b") == [1]
        assert job.workers["a"].process.wait(PATIENCE_SECONDS) == 143


@in_background
async def test_all_leave_at_once_and_nobody_waits(tmp_path: Path) -> None:
    """A suspended job is resumed from the copies, if these outlive the pods."""
    async with keeping(tmp_path, "a b") as job:
        job.workers["b"].write(snapshot(1))
        await job.kept()
        for worker in job.workers.values():
            worker.process.terminate()
        for worker in job.workers.values():
            assert worker.process.wait(PATIENCE_SECONDS) == 143
        shutil.rmtree(job.workers["a"].folder)
        (job.workers["b"].folder / FILE).unlink()
        await job.expect("c d")
        job.worker("c").start(DDPJOB_SNAPSHOT_DIR=str(job.workers["b"].shelf))
        job.worker("d").start()
        assert await job.begun_together("c d") == [1, 1]


@in_background
async def test_cut_off_workers_later_file_loses(tmp_path: Path) -> None:
    """A later membership has superseded the file's membership: it resumed from an older file."""
    async with keeping(tmp_path, "a b", replace(POLICY, heartbeat_deadline=5.0)) as job:
        a, b = job.workers["a"], job.workers["b"]
        a.write(snapshot(1))
        await job.kept()
        b.process.send_signal(signal.SIGSTOP)
        assert await job.begun(2, "a") == [1]
        b.write(snapshot(9))
        b.process.send_signal(signal.SIGCONT)
        assert await job.begun(3, "a b") == [1, 1]
        assert b.read() == snapshot(1)


@in_background
async def test_service_that_restarts_knows_the_copies_again(tmp_path: Path) -> None:
    async with keeping(tmp_path, "a b") as job:
        job.workers["a"].write(snapshot(1))
        await job.kept()
        job.service.kill()
        job.service.wait()
        newer = snapshot(2, size=5_000)
        job.workers["a"].write(newer)
        job.serve()
        await job.expect("a b")
        at = await job.kept()
        while job.report and job.report.files and job.report.files.size != len(newer):
            at = await job.kept(since=at)  # that was the one from before
        job.workers["a"].kill()
        assert await job.begun(2, "b") == [2]


@in_background
async def test_full_disk_costs_the_copies_and_not_the_job(tmp_path: Path) -> None:
    """The problem is reported. A joiner still gets the file, though neither worker can keep a copy."""
    async with keeping(tmp_path, "a", start=False) as job:
        for name in "ab":
            job.worker(name)
        job.workers["a"].start(on_small_disk(job.workers["a"].shelf))
        assert await job.begun(1, "a") == [None]
        job.workers["a"].write(snapshot(1, size=400_000))
        told = "a: cannot keep a copy of the script's files: No space left on device"
        await job.until(lambda: job.tells(told), told)
        job.workers["b"].start(on_small_disk(job.workers["b"].shelf))
        await job.expect("a b")
        assert await job.begun(2, "a b") == [1, 1]


@in_background
async def test_file_that_cannot_be_installed_is_a_failure_with_its_reason(
    tmp_path: Path,
) -> None:
    async with keeping(tmp_path, "a") as job:
        job.workers["a"].write(snapshot(1))
        await job.kept()
        (tmp_path / "b" / FILE).mkdir(parents=True)
        job.worker("b").start()
        await job.expect("a b")
        told = "b: the script's files cannot be installed: Is a directory"
        await job.until(lambda: job.fails(told), told)
        (tmp_path / "b" / FILE).rmdir()
        assert await job.begun_together("a b") == [1, 1]


@in_background
async def test_shared_directory_is_not_rewritten(tmp_path: Path) -> None:
    """Nor copied by each: one disk, one copy."""
    async with keeping(tmp_path, "a b", start=False) as job:
        together = {"ROOM": str(tmp_path), "DDPJOB_SNAPSHOT_DIR": str(tmp_path / "shelf")}
        for name in "abc":
            job.worker(name, [str(tmp_path / FILE)]).start(**together)
        assert await job.begun(1, "a b") == [None, None]
        job.workers["a"].write(snapshot(1), str(tmp_path / FILE))
        await job.kept()
        before = (tmp_path / FILE).stat()
        await job.expect("a b c")
        assert await job.begun(2, "a b c") == [1, 1, 1]
        assert (tmp_path / FILE).stat().st_ino == before.st_ino
        assert len(list((tmp_path / "shelf" / ".files").glob("[0-9]*"))) == 1
