"""Replicas that were made to harm: from a worker with the token, and on a volume that others write.

A replica changes the files that the worker's own `snapshot.files` names, and no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.file_sync.exchanging import Disk, peers, run
from ddpjob_agent.file_sync.decisions.admission import (
    MAX_BYTES,
    MAX_FILES,
    RefusedError,
    admit,
    parse_parts,
)
from ddpjob_agent.file_sync.decisions.replica import (
    FileEntry,
    FileInstruction,
    FileInventory,
    Replica,
    digest_of,
)
from ddpjob_agent.file_sync.disk import places
from ddpjob_agent.file_sync.disk.local_files import TrackedFiles
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_agent.net.framing import MAGIC, accept
from ddpjob_protocol.codec import decode, encode
from support.keys import PEERS

BODY = b"planted"
DIGEST = hashlib.blake2b(BODY, digest_size=16).hexdigest()
ENTRIES = ("snapshot.pt", "ckpt/*.pt", "state")


def entry(name: str, size: int = len(BODY), digest: str = DIGEST, mode: int = 0o644) -> FileEntry:
    return FileEntry(name, size, digest, mode)


HOSTILE = {
    "above": [entry("../train.py")],
    "above, below an entry": [entry("state/../../train.py")],
    "above, as a pattern": [entry("ckpt/../x.pt")],
    "beside": [entry("train.py")],
    "absolute": [entry("/tmp/snapshot.pt")],
    "absolute, in the working directory": [entry("{work}/snapshot.pt")],
    "of two slashes": [entry("//snapshot.pt")],
    "not normal": [entry("./snapshot.pt")],
    "of no characters": [entry("")],
    "with a null": [entry("state/a\0b")],
    "that no disk can have": [entry("state/\ud800")],
    "longer than a path": [entry("state/" + "/".join(["x" * 200] * 30))],
    "deep": [entry("state" + "/d" * 1000)],
    "hidden": [entry("state/.git/hooks/post-checkout")],
    "hidden, by a pattern": [entry("ckpt/.x.pt")],
    "of a folder, by a pattern": [entry("ckpt/x.pt.d/.y")],
    "twice": [entry("snapshot.pt"), entry("snapshot.pt")],
    "a file and a folder": [entry("state/a"), entry("state/a/b")],
    "the directory itself, and a file in it": [entry("state"), entry("state/a")],
    "of negative size": [entry("snapshot.pt", size=-1)],
    "larger than any disk": [entry("snapshot.pt", size=MAX_BYTES + 1)],
    "larger together": [entry(f"state/{n}", size=MAX_BYTES // 2 + 1) for n in range(2)],
    "with a path as digest": [entry("snapshot.pt", digest="../../etc/passwd")],
}  # fmt: skip
MALFORMED: dict[str, Any] = {
    "no list": {"snapshot.pt": 1},
    "a number": 7,
    "nothing": None,
    "files without sizes": [["snapshot.pt"]],
    "a size as text": [["snapshot.pt", "7", DIGEST, 0o644]],
    "a size that is true": [["snapshot.pt", True, DIGEST, 0o644]],
    "a size with a fraction": [["snapshot.pt", 7.0, DIGEST, 0o644]],
    "a name as list": [[["snapshot.pt"], 7, DIGEST, 0o644]],
    "a mode as text": [["snapshot.pt", 7, DIGEST, "04755"]],
    "too many files": [["snapshot.pt", 7, DIGEST, 0o644]] * (MAX_FILES + 1),
}


def contents(folder: Path) -> dict[str, str]:
    """All that is below a folder, without the store's own folder."""
    found = (path for path in folder.rglob("*") if ".files" not in path.parts)
    return {
        str(path): str(path.readlink()) if path.is_symlink()
        else path.read_text() if path.is_file() else "folder"
        for path in found
    }  # fmt: skip


# --- which files a replica may have ---------------------------------------------------------------


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_lists_are_refused(case: str) -> None:
    with pytest.raises(RefusedError, match=r"snapshot\.files|impossible|bytes|twice"):
        admit(tuple(HOSTILE[case]), ENTRIES)


TREE = (
    "a.pt", ".b.pt", "x/a.pt", "x/.b.pt", "x/y/a.pt", "x/y/z/a.pt", "x/.h/a.pt", ".h/a.pt",
    ".h/x/a.pt", "x/deep.pt/log", "x/deep.pt/.log", "s[1].pt", "s1.pt",
)  # fmt: skip
PATTERNS = (
    "a.pt", "*.pt", "x", "x/", "./x/y", "x/*.pt", "x/*", "*/a.pt", "**/a.pt", "x/**", "x/**/*.pt",
    "**/y/**", ".h", ".h/*", ".*", ".*/*.pt", "?/a.pt", "[xy]/[!b].pt", "[!x]/a.pt",
    "*/*/*", "x/[y]/z", "none", "**.pt", "[", "x/**/**/a.pt",
)  # fmt: skip


@pytest.mark.parametrize("is_absolute", [False, True])
def test_exactly_what_a_script_can_save_is_admitted(tmp_path: Path, is_absolute: bool) -> None:
    """Each pattern admits the names that the same pattern finds on a disk."""
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    start = f"{tmp_path}/" if is_absolute else ""
    for pattern in PATTERNS:
        tracked = TrackedFiles([start + pattern], str(tmp_path), "w")
        found = {each.name for each in tracked.fingerprint()}
        admitted = {start + name for name in TREE if is_admitted(start + name, start + pattern)}
        assert admitted == found, pattern


def is_admitted(name: str, pattern: str) -> bool:
    try:
        admit((entry(name),), [pattern])
    except RefusedError:
        return False
    return True


def test_permissions_are_all_that_a_mode_gives() -> None:
    (part,) = parse_parts([["snapshot.pt", 7, DIGEST, 0o106755]])
    assert part.mode == 0o755


@pytest.mark.parametrize("membership", ["../1.1.1", "1.1", "1.1.-1", " 1.1.1", "1.1.1_0", "x"])
def test_copy_of_no_membership_is_no_message(membership: str) -> None:
    copy = {"membership": membership, "seconds": 1.0, "digest": DIGEST, "size": 1}
    with pytest.raises(ValueError, match=r"membership|invalid|unpack"):
        decode(FileInventory, {"scope": "1.1.1", "copies": [copy]})


@pytest.mark.parametrize(
    ("seconds", "size"), [(float("nan"), 1), (float("inf"), 1), (-1, 1), (1, -1)]
)
def test_copy_of_no_time_or_size_is_no_message(seconds: float, size: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        Replica("1.1.1", seconds, DIGEST, size)


# --- from another worker --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def giver(parts: Any, body: bytes = BODY) -> AsyncIterator[tuple[str, int]]:
    """A worker with the key, that sends this list and these bytes."""

    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(MAGIC)) == MAGIC
        connection = await accept(reader, writer, lambda _: PEERS.key)
        await connection.receive()
        connection.send({"type": "copy", "parts": parts})
        with contextlib.suppress(ConnectionError):
            await connection.send_bytes(body)
        connection.close()

    server = await asyncio.start_server(give, "127.0.0.1", 0)
    yield ("127.0.0.1", server.sockets[0].getsockname()[1])
    server.close()


def named(parts: list[FileEntry], work: Path) -> list[FileEntry]:
    return [part._replace(name=part.name.replace("{work}", str(work))) for part in parts]


def announced(parts: list[FileEntry]) -> Replica:
    return Replica("9.9.9", 0.0, digest_of(parts), len(BODY))


def test_hostile_lists_of_a_worker_are_refused_and_reported_once(tmp_path: Path) -> None:
    """Nothing is written, and the service learns to name another copy."""

    async def body() -> None:
        async with peers(tmp_path, "b", entries=ENTRIES) as (b,):
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            before = contents(tmp_path)
            for case, listed in HOSTILE.items():
                parts = named(listed, b.disk.work)
                copy = announced(parts)
                for keep in (False, True):
                    async with giver(parts) as holder:
                        b.hear(FileInstruction("1.1.2", copy, (holder,), put=not keep, keep=keep))
                        await b.refuses(copy.digest)
                        b.said.clear()
                        b.hear(FileInstruction("1.1.2"))
                assert contents(tmp_path) == before, case
            assert b.keeper.install_error == ""

    run(body)


def test_refusal_has_reason_and_remedy(tmp_path: Path) -> None:
    async def body() -> None:
        async with peers(tmp_path, "b") as (b,):
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            parts = HOSTILE["above"]
            async with giver(parts) as holder, giver(parts) as other:
                for holders in ((holder,), (other, holder)):
                    b.hear(FileInstruction("1.1.2", announced(parts), holders, put=True))
                    await b.refuses(digest_of(parts))
                    b.said.append({})
            (warning,) = [said for said in b.said if said.get("type") == "warning"]
            assert warning["reason"] == "FilesRefused"
            assert "'../train.py' is not a file of snapshot.files" in warning["message"]
            assert "make a new job" in warning["message"]

    run(body)


def test_malformed_lists_of_a_worker_are_faults_of_that_worker(tmp_path: Path) -> None:
    """Another holder is asked: the copy itself may be good."""

    async def body() -> None:
        async with peers(tmp_path, "b", entries=ENTRIES) as (b,):
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            good = [entry("snapshot.pt")]
            for case, parts in MALFORMED.items():
                (b.disk.work / "snapshot.pt").unlink(missing_ok=True)
                b.disk.holdings.installed = b.disk.holdings.installed_digest = None
                for kept in b.disk.shelf.replicas():
                    b.disk.shelf.delete(kept)
                copy = announced(good)
                async with giver(parts) as bad, giver(good) as holder:
                    b.hear(FileInstruction("1.1.2", copy, (bad, holder, bad), put=True))
                    await b.told(installed=copy.digest)
                assert b.disk.read() == BODY, case
                b.said.clear()
                b.hear(FileInstruction("1.1.2"))

    run(body)


def test_no_copy_of_a_worker_sets_user_ids_or_exceeds_its_size(tmp_path: Path) -> None:
    async def body() -> None:
        async with peers(tmp_path, "b") as (b,):
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            parts = [entry("snapshot.pt", mode=0o6755)]
            async with giver(parts, BODY + b" and more") as holder:
                b.hear(FileInstruction("1.1.2", announced(parts), (holder,), put=True))
                await b.told(installed=digest_of(parts))
            assert b.disk.read() == BODY
            assert (b.disk.work / "snapshot.pt").stat().st_mode & 0o7777 == 0o755

    run(body)


# --- on a volume that others write to ---------------------------------------------------------------


def plant(disk: Disk, parts: Any, name: str = "9.9.9_0.000_x", **facts: Any) -> Path:
    """Put a replica into the store of a worker, without a token."""
    folder = disk.shelf_folder / name
    folder.mkdir()
    for number in range(len(parts) if isinstance(parts, list) else 1):
        if number < 3:
            (folder / str(number)).write_bytes(BODY)
    (folder / "manifest.json").write_text(json.dumps({"parts": parts, "seen": [], **facts}))
    return folder


@pytest.mark.parametrize("case", [*HOSTILE, *MALFORMED])
def test_hostile_lists_on_a_volume_are_refused_and_reported_once(tmp_path: Path, case: str) -> None:
    disk = Disk(tmp_path, *ENTRIES)
    parts = named(HOSTILE[case], disk.work) if case in HOSTILE else MALFORMED[case]
    folder = plant(disk, parts)
    before = contents(tmp_path)
    for _ in range(2):
        assert disk.holdings.replicas(stable=True) == ()
    if case in HOSTILE:
        assert not disk.holdings.install(announced(parts))
    assert contents(tmp_path) == before
    (refusal,) = disk.holdings.refused.take_new()
    assert str(folder) in refusal
    assert "delete the copy" in refusal


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"parts": [], "seen": 7}', "\0"], ids=range(6)
)
def test_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    disk = Disk(tmp_path)
    (plant(disk, [entry("snapshot.pt")]) / "manifest.json").write_text(text)
    assert disk.shelf.replicas() == []
    assert len(disk.shelf.refused) == 1


@pytest.mark.parametrize("seen", [[["snapshot.pt", 7, "0", 1]], [["other.pt", 7, 0, 1]], [[]]])
def test_what_a_volume_tells_of_its_sources_is_checked(tmp_path: Path, seen: Any) -> None:
    disk = Disk(tmp_path)
    plant(disk, [entry("snapshot.pt")], seen=seen)
    assert disk.shelf.replicas() == []


@pytest.mark.parametrize("name", ["nan", "inf", "-1"])
def test_copy_of_no_time_on_a_volume_is_none(tmp_path: Path, name: str) -> None:
    disk = Disk(tmp_path)
    plant(disk, [entry("snapshot.pt")], f"1.1.1_{name}_x")
    assert disk.shelf.replicas() == []


def test_no_copy_of_a_volume_sets_user_ids(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    parts = [entry("snapshot.pt", mode=0o6711)]
    plant(disk, parts)
    assert disk.holdings.install(announced(parts))
    assert (disk.work / "snapshot.pt").stat().st_mode & 0o7777 == 0o711


# --- links in the way ---------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    for name in ("file", "x.pt", ".x.pt.ddpjob-w", ".x.pt.ddpjob-aside", "7.pt"):
        (folder / name).write_text("untouched")
        (folder / name).chmod(0o600)
    (folder / "empty").mkdir()
    return folder


def state_of(victim: Path) -> dict[str, int]:
    assert all(path.is_dir() or path.read_text() == "untouched" for path in victim.iterdir())
    return {path.name: path.stat().st_mode for path in victim.iterdir()}


@pytest.mark.parametrize("is_absolute", [False, True])
def test_no_link_to_a_folder_is_followed(tmp_path: Path, victim: Path, is_absolute: bool) -> None:
    """Neither to write, to change permissions, to replace, to put aside nor to delete."""
    start = f"{tmp_path}/work/" if is_absolute else ""
    disk = Disk(tmp_path, f"{start}run/ckpt", f"{start}run/*.pt")
    disk.write(b"one", "run/ckpt/x.pt")
    disk.write(b"two", "run/ckpt/inner/y.pt")
    copy = disk.keep(1.0)
    before = state_of(victim)
    for link in ("run/ckpt", "run"):
        path = disk.work / link
        path.rename(path.with_name("moved"))
        path.symlink_to(victim)
        with pytest.raises(OSError, match="a symbolic link is in the way") as raised:
            disk.holdings.install(copy)
        assert raised.value.filename == str(path)
        disk.tracked.remove_staged([])
        for work in (disk.tracked.tidy, disk.holdings.clear, disk.tracked.check_folders):
            with contextlib.suppress(OSError):
                work()
        assert state_of(victim) == before
        path.unlink()
        path.with_name("moved").rename(path)


def test_files_behind_a_link_below_an_entry_are_not_the_jobs(tmp_path: Path, victim: Path) -> None:
    """A pattern may find a folder twice: by its name, and by a link such as `latest`."""
    disk = Disk(tmp_path, "run/*", "run/*/*.pt", "run/**/y.pt")
    disk.write(b"one", "run/1/x.pt")
    disk.write(b"two", "run/1/in/y.pt")
    (disk.work / "run" / "latest").symlink_to("1")
    (disk.work / "run" / "other").symlink_to(victim)
    assert [each.name for each in disk.tracked.fingerprint()] == ["run/1/in/y.pt", "run/1/x.pt"]
    copy = disk.keep(1.0)
    disk.write(b"torn", "run/1/x.pt")
    assert disk.holdings.install(copy)
    assert (disk.work / "run" / "latest" / "x.pt").read_bytes() == b"one"


def test_absolute_entry_may_name_a_folder_by_a_link_until_the_link_changes(
    tmp_path: Path, victim: Path
) -> None:
    (tmp_path / "real").mkdir()
    scratch = tmp_path / "scratch"
    scratch.symlink_to("real")
    disk = Disk(tmp_path, f"{scratch}/x.pt")
    (tmp_path / "real" / "x.pt").write_text("saved")
    copy = disk.keep(1.0)
    (tmp_path / "real" / "x.pt").unlink()
    scratch.unlink()
    scratch.symlink_to(victim)
    before = state_of(victim)
    assert disk.holdings.install(copy)
    assert (tmp_path / "real" / "x.pt").read_text() == "saved"
    assert state_of(victim) == before


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
@pytest.mark.parametrize("name", [".x.pt.ddpjob-w", "x.pt", ".ddpjob.partial"])
def test_no_link_to_a_file_is_followed(tmp_path: Path, victim: Path, name: str, kind: str) -> None:
    disk = Disk(tmp_path, "*.pt")
    disk.write(b"one", "x.pt")
    disk.write(b"two", "y.pt")
    copy = disk.keep(1.0)
    disk.write(b"later", "y.pt")
    (disk.work / name).unlink(missing_ok=True)
    if kind == "hard":
        (disk.work / name).hardlink_to(victim / "file")
    else:
        (disk.work / name).symlink_to(victim / "file")
    before = state_of(victim)
    assert disk.holdings.install(copy)
    assert (disk.work / "x.pt").read_bytes() == b"one"
    assert not (disk.work / "x.pt").is_symlink()
    assert state_of(victim) == before


def test_file_that_gets_another_name_before_it_is_complete_is_refused(
    tmp_path: Path, victim: Path
) -> None:
    staged = Place(str(tmp_path), "staged")
    (tmp_path / "staged").hardlink_to(victim / "file")
    before = state_of(victim)
    with pytest.raises(OSError, match="another name"):
        places.complete(staged, 0o777)
    assert state_of(victim) == before


@pytest.mark.parametrize("what", ["0", "manifest.json", ""])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_but_a_file_of_the_store_itself_is_read(
    tmp_path: Path, what: str, kind: str
) -> None:
    disk = Disk(tmp_path)
    folder = plant(disk, [entry("snapshot.pt")])
    path = folder / what
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    assert disk.shelf.replicas() == []


def test_store_behind_a_link_is_not_used(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / ".files").symlink_to(victim)
    with pytest.raises(OSError, match="a symbolic link is in the way"):
        Disk(tmp_path)


def test_links_in_the_store_are_deleted_themselves(tmp_path: Path, victim: Path) -> None:
    disk = Disk(tmp_path)
    folder = plant(disk, [entry("snapshot.pt")])
    (folder / "folder").symlink_to(victim)
    (folder / "file").symlink_to(victim / "file")
    (folder / "inner").mkdir()
    (folder / "inner" / "deep").symlink_to(victim)
    before = state_of(victim)
    (kept,) = disk.shelf.replicas()
    disk.shelf.delete(kept)
    assert not folder.exists()
    assert state_of(victim) == before


def test_name_that_leads_out_of_its_folder_is_no_place(tmp_path: Path, victim: Path) -> None:
    for name in ("../victim/file", str(victim / "file"), "a/../../victim/file"):
        with pytest.raises(OSError, match="leaves its folder"):
            places.create(Place(str(tmp_path), name)).close()


def test_inventory_of_an_older_agent_refuses_nothing() -> None:
    message = encode(FileInventory("1.1.1"))
    del message["refused"]
    assert decode(FileInventory, message).refused == ()


@pytest.mark.parametrize("entry", ["ckpt", "ckpt/*.pt", "ckpt/x.pt"])
def test_link_in_the_way_is_reported_before_the_first_start(tmp_path: Path, entry: str) -> None:
    """No write would follow it, so no copy could be installed later."""

    async def body() -> None:
        async with peers(tmp_path, "b", entries=[entry]) as (b,):
            (tmp_path / "real").mkdir()
            (b.disk.work / "ckpt").symlink_to(tmp_path / "real")
            b.hear(FileInstruction("1.1.2"))
            await b.told()
            assert b.keeper.install_error == (
                "the script's files cannot be installed: a symbolic link is in the way; name the"
                f" file or folder that it points to instead ({b.disk.work}/ckpt)"
            )
            assert b.changes == 1

    run(body)
