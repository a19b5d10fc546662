"""Copies of files on one worker's disk: whole or absent, two at the most, exactly put in place."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest

from agent.file_sync.exchanging import Disk, Peer, peers, run
from agent.file_sync.keeping import snapshot
from ddpjob_agent.file_sync import syncer
from ddpjob_agent.file_sync.decisions.replica import (
    NOTHING,
    FileEntry,
    FileInstruction,
    Parts,
    Replica,
    digest_of,
)
from ddpjob_agent.file_sync.disk.local_files import ChangedError
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_agent.file_sync.disk.replica_store import FOLDER, NEW, ReplicaStore, open_replica_store
from ddpjob_agent.file_sync.inventory import LocalReplicas
from ddpjob_agent.file_sync.transfer import ReplicaServer, Source, TransferError, fetch
from ddpjob_agent.net.framing import MAGIC, accept
from ddpjob_protocol.messages.membership import Cause, Membership, MembershipId
from support.keys import ANOTHER_KEY, PEERS

# --- which files ----------------------------------------------------------------------------------


def test_entries_are_files_patterns_and_directories(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere.pt"
    outside.write_bytes(b"x")
    disk = Disk(tmp_path, "./model.pt", "ckpt/*.pt", "state", str(outside), "absent.pt", "model.pt")
    for name in (
        "model.pt", "ckpt/1.pt", "ckpt/2.pt", "ckpt/log", "ckpt/.hidden.pt", "state/a",
        "state/deep/b", "state/.tmp", "state/.git/c", "other.pt",
    ):  # fmt: skip
        disk.write(b"x", name)
    found = [seen.name for seen in disk.tracked.fingerprint()]
    own = ["ckpt/1.pt", "ckpt/2.pt", "model.pt", "state/a", "state/deep/b"]
    assert found == sorted([str(outside), *own])


def test_name_with_signs_of_a_pattern_is_a_name_where_there_is_such_a_file(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "odd [name]", "step[1].pt")
    disk.write(b"x", "step[1].pt")
    disk.write(b"x", "step1.pt")
    assert [seen.name for seen in disk.tracked.fingerprint()] == ["step[1].pt"]


# --- copies ---------------------------------------------------------------------------------------


def test_two_copies_at_the_most_and_the_newest_ones(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    for step in range(1, 5):
        disk.write(snapshot(step))
        disk.keep(float(step))
    assert disk.times() == [3.0, 4.0]


def test_copy_brings_back_the_same_bytes_and_permissions(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "model.pt", "ckpt")
    disk.write(snapshot(1), "model.pt")
    disk.write(b"seven", "ckpt/deep/step")
    (disk.work / "model.pt").chmod(0o640)
    copy = disk.keep(1.0)
    disk.write(b"torn", "model.pt")
    shutil.rmtree(disk.work / "ckpt")
    assert disk.holdings.install(copy)
    assert (disk.work / "model.pt").read_bytes() == snapshot(1)
    assert (disk.work / "model.pt").stat().st_mode & 0o777 == 0o640
    assert disk.names() == ["ckpt/deep/step", "model.pt"]
    assert disk.holdings.installed_digest == copy.digest


def test_what_is_no_part_of_the_copy_is_put_aside_and_not_deleted(tmp_path: Path) -> None:
    """A script that takes the last of its files must not find one that no other worker has."""
    disk = Disk(tmp_path, "ckpt/*.pt")
    disk.write(snapshot(1), "ckpt/1.pt")
    copy = disk.keep(1.0)
    disk.write(snapshot(2)[:500], "ckpt/2.pt")
    assert disk.holdings.install(copy)
    assert disk.names() == ["ckpt/.2.pt.ddpjob-aside", "ckpt/1.pt"]
    assert (disk.work / "ckpt" / ".2.pt.ddpjob-aside").read_bytes() == snapshot(2)[:500]


def test_directory_with_nothing_for_the_script_is_not_found_by_it(tmp_path: Path) -> None:
    """A script that resumes from the directory with the highest number."""
    disk = Disk(tmp_path, "output")
    disk.write(snapshot(1), "output/checkpoint-10/model.pt")
    copy = disk.keep(1.0)
    for _ in range(2):
        disk.write(snapshot(2)[:500], "output/checkpoint-20/inner/model.pt")
        (disk.work / "output" / "checkpoint-30" / "empty").mkdir(parents=True)
        assert disk.holdings.install(copy)
        visible = [each.name for each in (disk.work / "output").glob("[!.]*")]
        assert visible == ["checkpoint-10"]
    aside = [path for path in (disk.work / "output").rglob("*") if path.name.startswith(".model")]
    assert [path.read_bytes() for path in aside] == 2 * [snapshot(2)[:500]]


def test_named_directory_stays_though_it_is_empty(tmp_path: Path) -> None:
    disk = Disk(tmp_path, "output", "parts-*")
    for name in ("output", "parts-1"):
        (disk.work / name).mkdir()
    said = []
    for _ in range(2):
        disk.holdings.scan_after_exit(lambda _: None)
        said.append(disk.holdings.installed_digest)
        disk.holdings.clear()
    assert said == [None, NOTHING], "with parts-1 it is not in place"
    assert [each.name for each in disk.work.iterdir()] == ["output"]


def test_what_a_killed_agent_was_putting_in_place_goes_away(tmp_path: Path) -> None:
    """A script would resume from the directory that holds nothing else; members may be at work."""
    disk = Disk(tmp_path, "output", "snapshot.pt")
    disk.write(snapshot(1), "output/checkpoint-10/model.pt")
    copy = disk.keep(1.0)
    for name in ("output/checkpoint-20/.model.pt.ddpjob-w", ".snapshot.pt.ddpjob-gone"):
        disk.write(b"half", name)
    disk.write(b"half", ".snapshot.pt.ddpjob-member")
    disk.holdings.scan_after_exit(lambda _: None, ["w", "member"])
    assert disk.holdings.installed_digest is None, "there is a directory for nothing"
    assert disk.holdings.install(copy)
    assert disk.names() == [".snapshot.pt.ddpjob-member", "output/checkpoint-10/model.pt"]
    assert [each.name for each in (disk.work / "output").iterdir()] == ["checkpoint-10"]


def test_what_was_half_put_in_place_is_no_copy(tmp_path: Path) -> None:
    """Each file is whole, but they are of two states: the agent ended between two renames."""
    disk = Disk(tmp_path, "a.pt", "b.pt")
    for step in (1, 2):
        disk.write(snapshot(step), "a.pt")
        disk.write(snapshot(step), "b.pt")
        copy = disk.keep(float(step))
    disk.write(snapshot(1), "a.pt")
    (disk.work / "b.pt").unlink()
    (disk.work / "b.pt" / "in the way").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        disk.holdings.install(copy)
    shutil.rmtree(disk.work / "b.pt")
    disk.write(snapshot(1), "b.pt")
    again = Disk(tmp_path, "a.pt", "b.pt")
    said = []
    for _ in range(2):
        again.holdings.scan_after_exit(lambda _: None)
        said.append(again.holdings.installed_digest)
        assert again.times() == [1.0, 2.0]
        assert again.holdings.install(copy)
    assert said == [None, copy.digest]
    assert again.names() == ["a.pt", "b.pt"]


def test_what_is_in_place_already_is_not_written_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    copy = disk.keep(1.0)
    before = (disk.work / "snapshot.pt").stat()
    assert disk.holdings.install(copy)
    after = (disk.work / "snapshot.pt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_other_bytes_in_place_are_known_without_another_read(tmp_path: Path) -> None:
    """They have the same names and sizes; to read them all takes longer than a holder waits."""
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    other = disk.keep(1.0)
    found = disk.holdings.find(other.digest)
    assert found is not None
    disk.write(snapshot(2))
    disk.keep(2.0)
    disk.holdings.cancel()
    assert disk.holdings.stage(other, found[0], to_store=False) != []


def test_file_that_changes_while_it_is_copied_is_no_copy(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    seen = disk.tracked.fingerprint()

    def script_writes() -> bool:
        disk.write(snapshot(2))
        return True

    with pytest.raises(ChangedError):
        disk.shelf.store(disk.tracked, seen, ("1.1.1", 1.0), script_writes)
    assert [each.name for each in disk.shelf_folder.iterdir()] == [".lock"]


def test_copy_that_was_damaged_later_is_not_installed(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    copy = disk.keep(1.0)
    disk.damage(copy)
    disk.write(b"torn")
    assert not disk.holdings.install(copy)
    assert (disk.work / "snapshot.pt").read_bytes() == b"torn"
    assert disk.shelf.replicas() == []


def test_what_was_left_half_done_is_no_copy_and_cleared(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    disk.keep(1.0)
    whole = disk.shelf.replicas()[0]
    for name in (f"{NEW}w-7", f"{NEW}other-1", "1.1.1_9.000_w", "not a copy"):
        shutil.copytree(whole.place.path, disk.shelf_folder / name)
    (disk.shelf_folder / "1.1.1_9.000_w" / "0").write_bytes(b"short")
    again = open_replica_store([str(tmp_path / "shelf")], "w", ["snapshot.pt"])
    assert [kept.place for kept in again.replicas()] == [whole.place]
    assert not (disk.shelf_folder / f"{NEW}w-7").exists()
    assert (disk.shelf_folder / f"{NEW}other-1").exists(), "another worker may be writing it"


def test_membership_makes_a_copy_its_own_and_clears_what_the_gone_left(tmp_path: Path) -> None:
    disk, gone = Disk(tmp_path, worker="a"), Disk(tmp_path, worker="z")
    disk.write(snapshot(9))
    gone.keep(90.0)
    disk.write(snapshot(1))
    disk.keep(10.0)
    for name in ("a-1", "b-1", "z-1"):
        (disk.shelf_folder / f"{NEW}{name}").mkdir()
    disk.holdings.on_membership("1.1.2", ["a", "b"])
    (kept,) = disk.shelf.replicas()
    assert (kept.copy.membership, kept.copy.seconds, kept.worker) == ("1.1.2", 0.0, "a")
    unfinished = sorted(path.name for path in disk.shelf_folder.glob(f"{NEW}*"))
    assert unfinished == [f"{NEW}a-1", f"{NEW}b-1"], "z is gone; a and b may be at work"


def test_what_a_gone_worker_left_on_a_shared_disk_is_taken_over(tmp_path: Path) -> None:
    gone, disk = Disk(tmp_path, worker="z"), Disk(tmp_path, worker="a")
    gone.write(snapshot(1))
    copy = gone.keep(10.0)
    assert disk.holdings.install(copy)
    disk.holdings.on_membership("1.1.2", ["a"])
    assert [kept.worker for kept in disk.shelf.replicas()] == ["a"]


def test_one_disk_one_copy_of_the_time_that_is_known_best(tmp_path: Path) -> None:
    """A watcher that saw the write, or an agent that sees the file first: either may be faster."""
    waiting, member = Disk(tmp_path, worker="c"), Disk(tmp_path, worker="a")
    member.write(snapshot(1))
    waiting.keep(0.0, "0.0.0")
    for disk, at in ((member, (5.0, "1.1.1")), (waiting, (0.0, "0.0.0"))):
        disk.keep(*at)
        (kept,) = disk.shelf.replicas()
        assert (kept.copy.membership, kept.copy.seconds) == ("1.1.1", 5.0)


# --- files that no agent saw the script write ---------------------------------------------------


def stock_of(disk: Disk) -> Replica:
    """Return the replica that a new agent finds on the disk."""
    fresh = LocalReplicas(disk.tracked, disk.shelf)
    fresh.scan_after_exit(lambda _: None)
    assert fresh.installed is not None
    return fresh.installed.copy


def test_file_from_before_the_job_is_older_than_any_copy(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    assert (stock_of(disk).membership, stock_of(disk).seconds) == ("0.0.0", 0.0)


def test_file_that_was_saved_after_the_last_copy_is_newer(tmp_path: Path) -> None:
    """The agent died before it could copy the file; both are on a disk that outlived the agent."""
    disk = Disk(tmp_path)
    disk.write(snapshot(1))
    last = disk.keep(10.0, "1.1.3")
    before = (disk.work / "snapshot.pt").stat().st_mtime_ns
    for change, newer in ((5, True), (-5, False)):
        disk.write(snapshot(2))
        at = before + change * 10**9
        os.utime(disk.work / "snapshot.pt", ns=(at, at))
        found = stock_of(disk)
        assert (found.order > last.order) == newer
        disk.shelf.delete(disk.shelf.find(found.digest) or disk.shelf.replicas()[-1])


# --- copies from other workers ----------------------------------------------------------------------


async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: Disk) -> None:
    """An agent that dies when it has given half of a copy."""
    assert await reader.readexactly(len(MAGIC)) == MAGIC
    connection = await accept(reader, writer, lambda _: PEERS.key)
    request = await connection.receive()
    assert request is not None
    found = source.holdings.find(request["digest"])
    assert found is not None
    parts, _ = found
    connection.send({"type": "copy", "parts": parts})
    await connection.send_bytes(source.read()[: parts[0].size // 2])
    connection.close()


def test_holder_dies_while_it_gives_and_another_one_is_asked(tmp_path: Path) -> None:
    """Whichever of the two comes first."""

    async def body() -> None:
        async with peers(tmp_path, "a", "b", "c") as (a, b, c):
            a.disk.write(snapshot(1))
            copy = a.disk.keep(10.0)
            server = await asyncio.start_server(
                lambda reader, writer: broken(reader, writer, a.disk), "127.0.0.1", 0
            )
            bad = ("127.0.0.1", server.sockets[0].getsockname()[1])
            a.hear(FileInstruction("1.1.2"))
            good = ("127.0.0.1", (await a.told())["port"])
            for peer, holders in ((b, (bad, good)), (c, (good, bad))):
                peer.hear(FileInstruction("1.1.2"))
                assert (await peer.told())["copies"] == []
                peer.hear(FileInstruction("1.1.2", copy, holders, put=True))
                said = await peer.told(installed=copy.digest)
                assert [each["digest"] for each in said["copies"]] == [copy.digest]
                assert peer.disk.read() == snapshot(1)
                assert peer.disk.names() == ["snapshot.pt"]
            server.close()

    run(body)


async def hold_first_copy(holder: Peer, other: Peer) -> tuple[Replica, tuple[str, int]]:
    """Return a copy that only the holder has, and its address, once both peers are idle."""
    holder.disk.write(snapshot(1))
    copy = holder.disk.keep(10.0)
    holder.hear(FileInstruction("1.1.2"))
    port = (await holder.told())["port"]
    other.hear(FileInstruction("1.1.2"))
    await other.told()
    return copy, ("127.0.0.1", port)


def test_copy_that_takes_longer_than_the_patience_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience is for holders that give nothing."""
    monkeypatch.setattr(syncer, "INSTALL_SECONDS", -1.0)

    async def body() -> None:
        async with peers(tmp_path, "a", "b") as (a, b):
            copy, holder = await hold_first_copy(a, b)
            b.hear(FileInstruction("1.1.2", copy, (holder,), put=True))
            await b.told(installed=copy.digest)
            assert b.keeper.install_error == ""

    run(body)


def test_nobody_without_the_key_gets_a_copy(tmp_path: Path) -> None:
    async def body() -> None:
        async with (
            peers(tmp_path, "a") as (a,),
            peers(tmp_path, "x", key=ANOTHER_KEY.worker_keys("x").peers) as (x,),
        ):
            copy, holder = await hold_first_copy(a, x)
            x.hear(FileInstruction("1.1.2", copy, (holder,), put=True))
            a.hear(FileInstruction("1.1.3"))
            x.hear(FileInstruction("1.1.3"))
            await x.says(lambda said: said["scope"] == "1.1.3")
            assert x.said[-1]["installed"] == ""
            assert x.disk.names() == []

    run(body)


def test_installed_copy_is_reported_though_a_newer_instruction_arrives(tmp_path: Path) -> None:
    """Another worker has the replica now, too: all wait for the answer of this one."""

    async def body() -> None:
        async with peers(tmp_path, "a", "b") as (a, b):
            copy, holder = await hold_first_copy(a, b)
            about_to_tell, go_on = threading.Event(), threading.Event()
            copies = b.disk.holdings.replicas

            def slow(*, stable: bool) -> tuple[Replica, ...]:
                about_to_tell.set()
                assert go_on.wait(60)
                return copies(stable=stable)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(b.disk.holdings, "replicas", slow)
                b.hear(FileInstruction("1.1.2", copy, (holder,), put=True))
                assert await asyncio.to_thread(about_to_tell.wait, 60)
                b.hear(FileInstruction("1.1.2", copy, (holder, holder), put=True))
                await asyncio.sleep(0)  # the syncer receives it while it is about to send
                go_on.set()
                await b.told(installed=copy.digest)

    run(body)


@pytest.mark.parametrize("fault", ["damage", "remove"])
def test_copy_that_is_damaged_or_deleted_is_reported_as_absent(tmp_path: Path, fault: str) -> None:
    """The holder fails the request: the service then names the next replica, or another holder."""

    async def body() -> None:
        async with peers(tmp_path, "a", "b") as (a, b):
            a.disk.write(snapshot(1))
            copy = a.disk.keep(10.0)
            a.disk.write(snapshot(2))
            a.disk.keep(20.0)
            a.hear(FileInstruction("1.1.2"))
            port = (await a.told())["port"]
            getattr(a.disk, fault)(copy)
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            b.hear(FileInstruction("1.1.2", copy, (("127.0.0.1", port),), put=True))
            await a.says(lambda said: all(c["digest"] != copy.digest for c in said["copies"]))
            assert b.disk.names() == []
            assert not b.keeper.may_start(Membership(MembershipId(1, 1, 2), (), Cause.STARTED, ""))

    run(body)


def test_copy_that_comes_damaged_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "0"
        path.write_bytes(b"damaged")
        parts = (FileEntry("snapshot.pt", 7, hashlib.blake2b(b"written").hexdigest(), 0o644),)
        rechecked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def recheck(digest: str) -> None:
            rechecked.set_result(digest)

        async def stage(_: Parts) -> list[Place]:
            return [Place(str(tmp_path), "came")]

        giver = ReplicaServer(PEERS.key, lambda _: (parts, [lambda: path.open("rb")]), recheck)
        await giver.listen("127.0.0.1")
        with pytest.raises(TransferError, match="not what it was"):
            await fetch(("127.0.0.1", giver.port), PEERS, digest_of(parts), stage)
        assert await rechecked == digest_of(parts)
        giver.close()

    run(body)


def test_copy_that_is_not_there_is_looked_for_before_the_answer(tmp_path: Path) -> None:
    async def body() -> None:
        gone = tmp_path / "gone"
        rechecked = []

        async def recheck(digest: str) -> None:
            rechecked.append(digest)

        async def stage(_: Parts) -> list[Place]:
            raise AssertionError("nothing comes")

        def find(digest: str) -> Source | None:
            known: Source = ((FileEntry("s", 1, "", 0o644),), [lambda: gone.open("rb")])
            return None if digest == "unknown" else known

        giver = ReplicaServer(PEERS.key, find, recheck)
        await giver.listen("127.0.0.1")
        for digest in ("unknown", "not to be opened"):
            with pytest.raises(TransferError, match="no such copy"):
                await fetch(("127.0.0.1", giver.port), PEERS, digest, stage)
        assert rechecked == ["unknown", "not to be opened"]
        giver.close()

    run(body)


@pytest.mark.parametrize("name", ["shelf", "elsewhere"])
def test_shelf_is_made_where_it_can_be(tmp_path: Path, name: str) -> None:
    first = tmp_path / "shelf"
    if name == "elsewhere":
        first.write_text("no directory")
    shelf = open_replica_store([str(first), str(tmp_path / "elsewhere")], "w", ["snapshot.pt"])
    assert isinstance(shelf, ReplicaStore)
    assert (tmp_path / name / FOLDER).is_dir()
