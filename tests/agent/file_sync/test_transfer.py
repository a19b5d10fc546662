"""The addresses at which an agent sends replicas."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from ddpjob_agent.file_sync.decisions.replica import FileEntry, digest_of
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_agent.file_sync.transfer import (
    MAX_ANSWER_BYTES,
    ReplicaServer,
    TransferError,
    fetch,
)
from ddpjob_agent.net.framing import MAGIC, accept
from support.keys import PEERS

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"written"
NO_ADDRESS_HERE = ("192.0.2.99", "2001:db8::99")


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("::1", ("::1",)),
        *((each, ("127.0.0.1", "::1")) for each in NO_ADDRESS_HERE),
    ],
)
def test_a_replica_is_fetched_over_ipv4_or_ipv6(
    tmp_path: Path, address: str, hosts: tuple[str, ...]
) -> None:
    held, target = tmp_path / "held", tmp_path / "target"
    held.write_bytes(CONTENT)
    digest = hashlib.blake2b(CONTENT, digest_size=16).hexdigest()
    parts = (FileEntry("snapshot.pt", len(CONTENT), digest, 0o644),)

    async def recheck(digest: str) -> None:
        raise AssertionError(f"{digest} is whole")

    async def stage(_: tuple[FileEntry, ...]) -> list[Place]:
        return [Place(str(tmp_path), target.name)]

    async def main() -> None:
        giver = ReplicaServer(PEERS.key, lambda _: (parts, [lambda: held.open("rb")]), recheck)
        await giver.listen(address)
        for host in hosts:
            target.unlink(missing_ok=True)
            await fetch((host, giver.port), PEERS, digest_of(parts), stage)
            assert target.read_bytes() == CONTENT
        giver.close()

    asyncio.run(main())


def test_a_list_of_files_is_refused_by_its_size_before_it_arrives() -> None:
    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(MAGIC)) == MAGIC
        await (await accept(reader, writer, lambda _: PEERS.key)).receive()
        writer.write((MAX_ANSWER_BYTES + 1).to_bytes(4, "big"))
        writer.close()

    async def stage(_: tuple[FileEntry, ...]) -> list[Place]:
        raise AssertionError("nothing was announced")

    async def main() -> None:
        server = await asyncio.start_server(give, "127.0.0.1", 0)
        async with server:
            with pytest.raises(TransferError, match="a frame of"):
                await fetch(server.sockets[0].getsockname()[:2], PEERS, "digest", stage)

    asyncio.run(main())
