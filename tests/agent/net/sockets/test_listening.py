"""Listeners of all addresses: those of IPv6 and of IPv4."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ddpjob_agent.net.sockets.listening import Listener, bind
from ddpjob_agent.net.sockets.reserved_port import ReservedPort


async def close(_: object, writer: asyncio.StreamWriter, _authenticated: object) -> None:
    writer.close()


async def reaches(listener: Listener, host: str) -> bool:
    """Return whether a client reaches the listener at this address."""
    try:
        reader, writer = await asyncio.open_connection(host, listener.port)
    except ConnectionRefusedError:
        return False
    assert await reader.read() == b""
    writer.close()
    return True


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        pytest.param("", {"127.0.0.1", "::1"}, id="all addresses"),
        pytest.param("::", {"127.0.0.1", "::1"}, id="all addresses, as IPv6"),
        pytest.param("0.0.0.0", {"127.0.0.1"}, id="all addresses of IPv4"),
        pytest.param("127.0.0.1", {"127.0.0.1"}, id="one of IPv4"),
        pytest.param("::1", {"::1"}, id="one of IPv6"),
    ],
)
def test_a_listener_is_reached_at_its_addresses(host: str, reached: set[str]) -> None:
    async def main() -> None:
        listener = Listener(bind(host, 0), close)
        found = {each for each in ("127.0.0.1", "::1") if await reaches(listener, each)}
        listener.close()
        assert found == reached

    asyncio.run(main())


def test_a_machine_without_ipv6_has_the_addresses_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind("", 0) as bound:
        assert bound.family == socket.AF_INET


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_answers_are_sent_without_delay(host: str) -> None:
    async def main() -> None:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def serve(_: object, writer: asyncio.StreamWriter, _authenticated: object) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = Listener(bind(host, 0), serve)
        assert await reaches(listener, host)
        assert await found
        listener.close()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1"])
def test_a_port_in_use_is_an_error(host: str) -> None:
    async def main() -> None:
        listener = Listener(bind(host, 0), close)
        with pytest.raises(OSError, match="in use"):
            Listener(bind(host, listener.port), close)
        listener.close()

    asyncio.run(main())


def test_a_reserved_port_is_reserved_for_both_families() -> None:
    held = ReservedPort()
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
            other.bind((host, held.number))
    held.close()
