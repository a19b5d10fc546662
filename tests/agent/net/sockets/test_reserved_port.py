"""The use of a port that an agent reserves."""

from __future__ import annotations

from torch.distributed import TCPStore

from ddpjob_agent.net.sockets.reserved_port import ReservedPort


def test_a_free_port_is_nobody_elses_and_can_be_listened_on() -> None:
    held, another = ReservedPort(), ReservedPort()
    assert another.number != held.number
    store = TCPStore("127.0.0.1", held.number, is_master=True)
    other = TCPStore("127.0.0.1", held.number, is_master=False)
    store.set("key", "value")
    assert other.get("key") == b"value"
    held.close()
    another.close()
