"""Disks of workers, and syncers that exchange replicas."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from ddpjob_agent.file_sync.decisions.replica import FileInstruction, Replica
from ddpjob_agent.file_sync.disk.local_files import TrackedFiles
from ddpjob_agent.file_sync.disk.replica_store import FOLDER, open_replica_store
from ddpjob_agent.file_sync.inventory import LocalReplicas
from ddpjob_agent.file_sync.syncer import FileSyncer
from ddpjob_protocol.codec import encode
from ddpjob_protocol.keys.credentials import Credential
from ddpjob_protocol.messages.membership import Member
from support.keys import PEERS


class Disk:
    """One worker's working directory and shelf."""

    def __init__(
        self, folder: Path, *entries: str, worker: str = "w", shelf: str = "shelf"
    ) -> None:
        self.work = folder / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.shelf_folder = folder / shelf / FOLDER
        self.tracked = TrackedFiles(entries or ("snapshot.pt",), str(self.work), worker)
        self.shelf = open_replica_store([str(folder / shelf)], worker, self.tracked.entries)
        self.holdings = LocalReplicas(self.tracked, self.shelf)

    def write(self, content: bytes, name: str = "snapshot.pt") -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def keep(self, seconds: float, membership: str = "1.1.1") -> Replica:
        self.holdings.store(self.tracked.fingerprint(), (membership, seconds))
        assert self.holdings.installed is not None
        return self.holdings.installed.copy

    def names(self) -> list[str]:
        """All files of the working directory, the hidden ones, too."""
        files = (path for path in self.work.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.work).as_posix() for path in files)

    def read(self) -> bytes:
        return (self.work / "snapshot.pt").read_bytes()

    def remove(self, copy: Replica) -> None:
        """Delete a copy from the store."""
        kept = self.shelf.find(copy.digest)
        assert kept is not None
        shutil.rmtree(kept.place.path)

    def damage(self, copy: Replica) -> None:
        """One bit of a copy on the shelf flips."""
        kept = self.shelf.find(copy.digest)
        assert kept is not None
        path = Path(kept.files()[0].path)
        content = bytearray(path.read_bytes())
        content[700] ^= 1
        path.write_bytes(content)

    def times(self) -> list[float]:
        """Return the times of the copies, the oldest first."""
        return [kept.copy.seconds for kept in self.shelf.replicas()]


class Peer:
    """A worker's syncer, with a key."""

    def __init__(self, disk: Disk, key: Credential = PEERS) -> None:
        self.disk = disk
        self.said: list[dict[str, Any]] = []
        self.changes = 0
        self.keeper = FileSyncer(disk.holdings, key, self.said.append, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def hear(self, word: FileInstruction) -> None:
        members = [dataclasses.asdict(Member(name, "", "127.0.0.1", 1)) for name in "ab"]
        order = {"type": "run", "membership": {"members": members}, "files": encode(word)}
        self.keeper.on_order(order)

    async def told(self, installed: str | None = None) -> dict[str, Any]:
        """Return the last inventory sent to the service, once it has this replica as installed."""
        return await self.says(lambda said: installed is None or said["installed"] == installed)

    async def refuses(self, digest: str) -> None:
        """Wait for an inventory that refuses this replica."""
        await self.says(lambda said: digest in said.get("refused", ()))

    async def says(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the last message to the service, once it meets the condition."""
        while not (self.said and condition(self.said[-1])):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        return self.said[-1]


@contextlib.asynccontextmanager
async def peers(
    folder: Path, *names: str, key: Credential = PEERS, entries: Sequence[str] = ()
) -> AsyncIterator[list[Peer]]:
    found = [Peer(Disk(folder / name, *entries, worker=name), key) for name in names]
    try:
        for peer in found:
            await peer.keeper.listen("127.0.0.1")
        yield found
    finally:
        for peer in found:
            peer.keeper.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(body(), 120)

    asyncio.run(main())
