"""Hosts that acknowledge nothing: probes, silence, and what is not silence."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from ddpjob_agent.net.sockets.tcp_info import TcpInfo, read_tcp_info
from ddpjob_agent.service.host_watch import PERIOD_SECONDS, PROBE_SECONDS, HostWatch, period

HEARD = TcpInfo(unacknowledged=False, silence=0.0)
QUIET = TcpInfo(unacknowledged=False, silence=1.0)
NOW = 1000.0
PATIENCE_SECONDS = 60.0


class Watch:
    """A watch in a time of its own, that notes its probes."""

    def __init__(self, workers: str) -> None:
        self.now = NOW
        self.watch = HostWatch()
        self.probed: list[str] = []
        self.infos = dict.fromkeys(workers, HEARD)
        self.check()

    def check(self, seconds: float = 0.0) -> dict[str, float]:
        """Check once, after this time."""
        self.now += seconds
        return self.watch.check(self.infos, self.now, self.probed.append)

    def silence(self, *workers: str) -> dict[str, float]:
        """Let hosts acknowledge nothing, check for a second, and return what was silent at last."""
        since, silent = self.now, {}
        for worker in workers:
            self.infos[worker] = QUIET
        self.check()
        for _ in range(7):
            for worker in workers:
                self.infos[worker] = TcpInfo(True, 1.0 + self.now + PERIOD_SECONDS - since)
            silent = self.check(PERIOD_SECONDS)
        return silent


def test_a_quiet_connection_is_probed_once() -> None:
    watch = Watch("ab")
    watch.infos["b"] = QUIET
    watch.check(PERIOD_SECONDS)
    assert watch.probed == ["b"]
    watch.infos["b"] = TcpInfo(True, 1.0)
    watch.check(PERIOD_SECONDS)
    assert watch.probed == ["b"]


def test_a_host_that_acknowledges_nothing_is_silent_since_it_was_last_heard() -> None:
    watch = Watch("ab")
    assert watch.silence("b") == {"b": pytest.approx(NOW - 1.0)}


def test_a_host_that_acknowledges_again_is_not_silent() -> None:
    watch = Watch("ab")
    assert watch.silence("b")
    watch.infos["b"] = HEARD
    assert watch.check(PERIOD_SECONDS) == {}


def test_a_probe_has_the_time_of_a_retransmission() -> None:
    watch = Watch("ab")
    watch.infos["b"] = QUIET
    watch.check(PERIOD_SECONDS)
    watch.infos["b"] = TcpInfo(True, 1.0 + PROBE_SECONDS / 2)
    assert watch.check(PROBE_SECONDS / 2) == {}


@pytest.mark.parametrize("silent", ["bc", "abc"])
def test_if_most_hosts_are_silent_the_fault_is_near_the_service(silent: str) -> None:
    assert Watch("abc").silence(*silent) == {}


def test_half_of_the_hosts_may_be_silent() -> None:
    assert set(Watch("abcd").silence("c", "d")) == {"c", "d"}


def test_after_a_stall_of_the_service_its_probes_count_anew() -> None:
    watch = Watch("ab")
    watch.silence("b")
    watch.infos["b"] = TcpInfo(True, 100.0)
    assert watch.check(90.0) == {}
    assert watch.check(PERIOD_SECONDS) == {}
    assert watch.check(PERIOD_SECONDS) == {"b": pytest.approx(watch.now - 100.0)}


def test_many_connections_are_checked_less_often() -> None:
    assert period(10) == PERIOD_SECONDS
    assert period(1000) == pytest.approx(0.5)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


def test_the_kernel_acknowledges_for_a_process_that_does_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Thus a starved or stopped process is not a silent host."""
    one, _ = pair
    one.sendall(b"a probe")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (info := read_tcp_info(one)) is not None and info.unacknowledged:
        assert time.monotonic() < deadline
    assert info is not None
    assert info.silence < PATIENCE_SECONDS


def test_a_socket_without_tcp_has_no_such_state() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert read_tcp_info(one) is None
