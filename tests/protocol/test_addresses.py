"""Host and port as one text, with brackets for IPv6."""

from __future__ import annotations

import pytest

from ddpjob_protocol.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("127.0.0.1", 29400, "127.0.0.1:29400"),
        ("digits-rendezvous.team.svc", 1, "digits-rendezvous.team.svc:1"),
        ("::1", 65535, "[::1]:65535"),
        ("fd00::2", 29400, "[fd00::2]:29400"),
        ("fe80::1%eth0", 0, "[fe80::1%eth0]:0"),
        ("::ffff:10.0.0.1", 80, "[::ffff:10.0.0.1]:80"),
    ],
)
def test_host_and_port_are_joined_and_split(host: str, port: int, text: str) -> None:
    assert join_address(host, port) == text
    assert split_address(text) == (host, port)


def test_an_ipv6_address_without_brackets_ends_before_the_last_colon() -> None:
    assert split_address("fd00::1:29400") == ("fd00::1", 29400)


@pytest.mark.parametrize(
    "text",
    [
        "", "host", "host:", ":80", "host:http", "host:-1", "host:+1", "host:65536", "host:1²",
        "[::1]", "[::1", "[::1:80", "::1]:80", "[]:80", "[[::1]]:80",
    ],
)  # fmt: skip
def test_what_is_no_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not host:port, such as 10\.0\.0\.1:29400 or"):
        split_address(text)
