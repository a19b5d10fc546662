"""The addresses at which an agent sends replicas."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import pytest

from ddpjob_agent.file_sync.decisions.replica import FileEntry, digest_of
from ddpjob_agent.file_sync.disk.places import Place
from ddpjob_agent.file_sync.transfer import ReplicaServer, fetch
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
