"""Stock torch clients, and clients that break the rules, get the same answers from two servers:
our c10d store and torch's own. Every test runs against both; the few real differences are named.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.protocol import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

c10d: Any = torch.distributed  # its annotations lack half of what a store can do
Client = Any

SCRIPT = Path(__file__).parent / "scripts" / "c10d_server.py"
AGENT = Path(__file__).resolve().parents[3] / "trainer-image"
HOST = "127.0.0.1"
PATIENCE = timedelta(seconds=60)  # never used up when all is well
SOON = timedelta(milliseconds=20)  # for waits that are meant to time out
BROKEN = 64  # a command that no version of torch has


@dataclass
class Server:
    name: str
    port: int

    def client(self, timeout: timedelta = PATIENCE) -> Client:
        return c10d.TCPStore(
            HOST, self.port, is_master=False, wait_for_workers=False, timeout=timeout
        )


@pytest.fixture(scope="module", autouse=True)
def impatient_resolver() -> Iterator[None]:
    """Torch asks DNS for the name of every peer, loopback included; a lost answer costs 5 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
        yield


@pytest.fixture(scope="module")
def our_process() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, SCRIPT],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        assert process.wait(PATIENCE.seconds) == 0


@pytest.fixture(params=["ours", "torch"])
def server(request: pytest.FixtureRequest, our_process: subprocess.Popen[str]) -> Iterator[Server]:
    if request.param == "torch":
        master = c10d.TCPStore(
            HOST, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE, use_libuv=True
        )
        yield Server("torch", master.port)
    else:
        yield Server("ours", int(tell(our_process)))
        assert json.loads(tell(our_process)) == []


def tell(process: subprocess.Popen[str]) -> str:
    """The answer of scripts/c10d_server.py to its next line."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client()


@pytest.fixture
def other(server: Server) -> Client:
    return server.client()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def integer(number: int) -> bytes:
    return struct.pack("<q", number)


def text(value: bytes) -> bytes:
    return integer(len(value)) + value


def keys(*names: bytes) -> bytes:
    return integer(len(names)) + b"".join(map(text, names))


HELLO = bytes([Op.VALIDATE]) + struct.pack("<I", protocol.MAGIC)


class Raw:
    """A client that sends whatever bytes it likes. Keys of torch's clients start with a slash."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, *parts: bytes) -> None:
        self.connection.sendall(b"".join(parts))

    def receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = self.connection.recv(count - len(received))
            assert part, "the server closed the connection"
            received += part
        return received

    def ask(self, op: Op, *arguments: bytes, answer: bytes) -> None:
        self.send(bytes([op]), *arguments)
        assert self.receive(len(answer)) == answer

    def ping(self) -> None:
        """All that was sent before has been read and answered; nothing else is on its way."""
        self.ask(Op.PING, b"ping", answer=b"ping")

    def assert_closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            assert self.connection.recv(1) == b""

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def connect(server: Server) -> Iterator[Raw]:
    with socket.create_connection((HOST, server.port), PATIENCE.seconds) as connection:
        yield Raw(connection)


@pytest.fixture
def stranger(server: Server) -> Iterator[Raw]:
    """Connected; no request is sent."""
    with connect(server) as raw:
        yield raw


@pytest.fixture
def raw(stranger: Raw) -> Raw:
    stranger.send(HELLO)
    return stranger


# What torch's client can ask for


def test_set_and_get(client: Client, other: Client) -> None:
    client.set("key", "value")
    assert client.get("key") == b"value"
    client.set("key", "")
    assert client.get("key") == b""
    assert other.get("key") == b""


def test_values_of_any_bytes_and_keys_of_any_text(client: Client) -> None:
    value = bytes(range(256)) * 5000
    client.set("ключ\0 /\n", value)
    assert client.get("ключ\0 /\n") == value


def test_get_waits_for_the_key(client: Client, other: Client, pool: ThreadPoolExecutor) -> None:
    pending = pool.submit(client.get, "key")
    other.set("key", "value")
    assert pending.result() == b"value"


def test_get_times_out(client: Client) -> None:
    client.set_timeout(SOON)
    with pytest.raises(c10d.DistStoreError):
        client.get("key")
    client.set_timeout(PATIENCE)
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_add(client: Client, other: Client) -> None:
    assert client.add("n", 3) == 3
    assert other.add("n", -5) == -2
    assert client.get("n") == b"-2"
    client.set("n", "40")
    assert client.add("n", 2) == 42


@pytest.mark.parametrize("start", ["  +7 apples", "007", str(2**63 - 1), str(-(2**63))])
def test_add_to_odd_numbers(client: Client, start: str) -> None:
    client.set("n", start)
    expected = {"  +7 apples": 8, "007": 8, str(2**63 - 1): -(2**63), str(-(2**63)): 1 - 2**63}
    assert client.add("n", 1) == expected[start]


@pytest.mark.parametrize("start", ["", "apples", "- 1", str(2**63)])
def test_add_to_no_number_ends_the_connection(client: Client, other: Client, start: str) -> None:
    client.set("n", start)
    with pytest.raises(c10d.DistNetworkError):
        client.add("n", 1)
    assert other.get("n") == start.encode()


@pytest.mark.parametrize(
    ("current", "expected", "answer", "after"),
    [
        ("old", "old", b"new", b"new"),
        ("old", "different", b"old", b"old"),
        ("old", "", b"old", b"old"),
        ("", "", b"new", b"new"),
        ("", "different", b"", b""),
        (None, "", b"new", b"new"),
        (None, "different", b"different", None),
    ],
)
def test_compare_set(
    client: Client, current: str | None, expected: str, answer: bytes, after: bytes | None
) -> None:
    if current is not None:
        client.set("key", current)
    assert client.compare_set("key", expected, "new") == answer
    assert client.check(["key"]) is (after is not None)
    assert client.multi_get(["key"] if after is not None else []) == [after] * (after is not None)


def test_wait_for_keys_that_are_there(client: Client) -> None:
    client.set("a", "")
    client.add("b", 1)
    client.wait(["a", "b"], PATIENCE)
    client.wait([], PATIENCE)


WRITES = {
    "set": lambda store: store.set("key", "value"),
    "add": lambda store: store.add("key", 0),
    "append": lambda store: store.append("key", ""),
    "compare_set": lambda store: store.compare_set("key", "", "value"),
    "multi_set": lambda store: store.multi_set(["key"], ["value"]),
    "queue_push": lambda store: store.queue_push("key", "value"),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_ends_a_wait(raw: Raw, client: Client, write: str) -> None:
    raw.send(bytes([Op.WAIT]), keys(b"/key"))
    raw.ping()
    WRITES[write](client)
    assert raw.receive(1) == protocol.STOP_WAITING
    raw.ping()


def test_wait_ends_with_the_last_of_its_keys(raw: Raw, client: Client) -> None:
    client.set("a", "")
    client.num_keys()
    raw.send(bytes([Op.WAIT]), keys(b"/a", b"/b", b"/c", b"/b"))
    raw.ping()
    client.set("c", "")
    client.num_keys()
    raw.ping()
    client.set("b", "")
    assert raw.receive(1) == protocol.STOP_WAITING
    raw.ping()


def test_wait_ends_although_its_keys_are_deleted_again(raw: Raw, client: Client) -> None:
    raw.send(bytes([Op.WAIT]), keys(b"/a", b"/b"))
    raw.ping()
    for key in ("a", "b"):
        client.set(key, "")
        client.delete_key(key)
    assert raw.receive(1) == protocol.STOP_WAITING


def test_a_client_that_timed_out_can_be_used_again(
    client: Client, other: Client, pool: ThreadPoolExecutor
) -> None:
    for _ in range(3):
        with pytest.raises(c10d.DistStoreError):
            client.wait(["key"], SOON)
    other.set("unrelated", "")
    assert client.add("n", 1) == 1
    pending = pool.submit(client.wait, ["key"], PATIENCE)
    other.set("key", "")
    pending.result()
    assert client.get("key") == b""


def test_all_waiting_clients_continue(server: Server, pool: ThreadPoolExecutor) -> None:
    pending = [pool.submit(server.client().get, "key") for _ in range(4)]
    server.client().set("key", "value")
    assert [get.result() for get in pending] == [b"value"] * 4


def test_check(client: Client) -> None:
    client.set("a", "")
    client.queue_push("queue", "item")
    assert client.check(["a"])
    assert client.check(["a", "a", "queue"])
    assert client.check([])
    assert not client.check(["a", "b"])


def test_append(client: Client) -> None:
    client.append("key", "one ")
    client.append("key", "two")
    assert client.get("key") == b"one two"


def test_multi_set_and_multi_get(client: Client) -> None:
    client.multi_set(["a", "b", "a"], ["1", "", "2"])
    assert client.multi_get(["b", "a", "b"]) == [b"", b"2", b""]
    client.multi_set([], [])
    assert client.multi_get([]) == []


def test_num_keys_and_delete_key(client: Client) -> None:
    client.multi_set(["a", "b"], ["", ""])
    client.queue_push("queue", "item")
    assert client.num_keys() == 2
    assert client.delete_key("a")
    assert not client.delete_key("a")
    assert not client.delete_key("queue")
    assert client.num_keys() == 1
    assert not client.check(["a"])
    assert client.add("a", 1) == 1


def test_queues(client: Client, other: Client) -> None:
    assert client.queue_len("queue") == 0
    client.queue_push("queue", "1")
    client.queue_push("queue", "")
    assert client.queue_len("queue") == 2
    assert other.queue_pop("queue") == b"1"
    assert other.queue_pop("queue", block=False) == b""
    with pytest.raises(c10d.QueueEmptyError):
        other.queue_pop("queue", block=False)
    assert client.queue_len("queue") == 0


def test_queue_and_value_of_one_name_are_apart(client: Client) -> None:
    client.queue_push("key", "item")
    client.set("key", "value")
    assert client.get("key") == b"value"
    assert client.delete_key("key")
    assert client.queue_pop("key") == b"item"
    assert not client.check(["key"])


def test_queue_pop_waits(raw: Raw, client: Client) -> None:
    """Send the bytes of queue_pop(): torch's own call holds the GIL, so no thread could push."""
    raw.send(bytes([Op.WAIT]), keys(b"/queue"))
    raw.ping()
    client.queue_push("queue", "item")
    assert raw.receive(1) == protocol.STOP_WAITING
    raw.ask(Op.QUEUE_POP, text(b"/queue"), answer=integer(1) + text(b"item"))
    raw.ask(Op.QUEUE_POP, text(b"/queue"), answer=integer(0))


def test_queue_pop_times_out(client: Client) -> None:
    client.set_timeout(SOON)
    with pytest.raises(c10d.DistStoreError):
        client.queue_pop("queue")
    client.queue_push("queue", "item")
    assert client.queue_pop("queue") == b"item"


def test_each_item_wakes_one_client(server: Server, client: Client) -> None:
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(server)) for _ in range(3)]
        for raw in waiting:
            raw.send(HELLO, bytes([Op.WAIT]), keys(b"/queue"))
            raw.ping()
        for item in "abc":
            client.queue_push("queue", item)
            raw = waiting.pop(0)
            assert raw.receive(1) == protocol.STOP_WAITING
            for other in waiting:
                other.ping()
            answer = integer(1) + text(item.encode())
            raw.ask(Op.QUEUE_POP, text(b"/queue"), answer=answer)


def test_barrier(client: Client, other: Client, pool: ThreadPoolExecutor) -> None:
    client.barrier("alone", 1, PATIENCE)
    pending = pool.submit(client.barrier, "both", 2, PATIENCE)
    other.barrier("both", 2, PATIENCE)
    pending.result()
    assert client.get("both") == b"2"
    client.barrier("both", 2, PATIENCE)


def test_barrier_times_out(client: Client) -> None:
    with pytest.raises(c10d.DistStoreError):
        client.barrier("both", 2, SOON)
    client.barrier("alone", 1, PATIENCE)


def test_who_gave_up_a_barrier_does_not_count(server: Server, raw: Raw) -> None:
    """A difference: torch counts a client that gave up, and lets the next client pass alone."""
    raw.send(bytes([Op.BARRIER]), text(b"/key"), integer(2))
    raw.ask(Op.CANCEL_WAIT, answer=protocol.WAIT_CANCELED)
    left = b"1" if server.name == "torch" else b"0"
    raw.ask(Op.GET, text(b"/key"), answer=text(left))


def test_prefix_store(client: Client, other: Client) -> None:
    inner = c10d.PrefixStore("job", c10d.PrefixStore("round", client))
    inner.set("key", "value")
    assert inner.get("key") == b"value"
    assert inner.add("n", 2) == 2
    assert inner.compare_set("key", "value", "new") == b"new"
    assert inner.check(["key", "n"])
    inner.wait(["key", "n"], PATIENCE)
    assert inner.multi_get(["key", "n"]) == [b"new", b"2"]
    with pytest.raises(c10d.DistStoreError):
        inner.wait(["absent"], SOON)
    assert other.multi_get(["round/job/key", "round/job/n"]) == [b"new", b"2"]
    assert inner.delete_key("key")


def test_clone(client: Client) -> None:
    client.set("key", "value")
    assert client.clone().get("key") == b"value"


# Requests as bytes


def test_ping(raw: Raw) -> None:
    raw.ask(Op.PING, b"\0\1\2\xff", answer=b"\0\1\2\xff")


def test_a_request_may_come_byte_by_byte(raw: Raw) -> None:
    for byte in bytes([Op.COMPARE_SET]) + text(b"/key") + text(b"") + text(b"value"):
        raw.send(bytes([byte]))
    assert raw.receive(13) == text(b"value")


def test_requests_of_one_client_are_answered_in_order(raw: Raw) -> None:
    requests = b"".join(
        [
            bytes([Op.SET]) + text(b"/n") + text(b"1"),
            bytes([Op.WAIT]) + keys(b"/n"),
            bytes([Op.ADD]) + text(b"/n") + integer(1),
            bytes([Op.CHECK]) + keys(b"/x"),
            bytes([Op.BARRIER]) + text(b"/n") + integer(3),
            bytes([Op.GET]) + text(b"/n"),
        ]
    )
    answers = b"".join([protocol.STOP_WAITING, integer(2), protocol.NOT_READY, b"\0", text(b"3")])
    raw.send(requests)
    assert raw.receive(len(answers)) == answers
    raw.ping()


def test_get_of_a_missing_key_is_empty(raw: Raw) -> None:
    raw.ask(Op.GET, text(b"/key"), answer=text(b""))
    raw.ask(Op.MULTI_GET, keys(b"/a", b"/b"), answer=text(b"") * 2)
    raw.ask(Op.GETNUMKEYS, answer=integer(0))


def test_list_keys(client: Client) -> None:
    assert client.list_keys() == []
    client.multi_set(["a", "bc"], ["", ""])
    client.queue_push("queue", "item")
    client.add("gone", 1)
    client.delete_key("gone")
    assert sorted(client.list_keys()) == ["a", "bc"]


def test_cancel_wait(raw: Raw, client: Client) -> None:
    raw.send(bytes([Op.WAIT]), keys(b"/key"))
    raw.ask(Op.CANCEL_WAIT, answer=protocol.WAIT_CANCELED)
    client.set("key", "")
    client.num_keys()
    raw.ping()
    raw.ask(Op.WAIT, keys(b"/key"), answer=protocol.STOP_WAITING)


def test_cancel_wait_without_a_wait(raw: Raw) -> None:
    raw.ask(Op.CANCEL_WAIT, answer=protocol.WAIT_CANCELED)
    raw.ping()


def test_cancel_wait_after_the_wait_has_ended(raw: Raw) -> None:
    raw.ask(Op.WAIT, keys(), answer=protocol.STOP_WAITING)
    raw.ask(Op.CANCEL_WAIT, answer=protocol.WAIT_CANCELED)
    raw.ping()


def test_a_waiting_client_may_send_further_requests(raw: Raw) -> None:
    raw.send(bytes([Op.WAIT]), keys(b"/key"))
    raw.ask(Op.ADD, text(b"/n"), integer(1), answer=integer(1))
    raw.send(bytes([Op.SET]), text(b"/key"), text(b"value"))
    assert raw.receive(1) == protocol.STOP_WAITING


def test_compare_set_that_writes_nothing_ends_no_wait(
    server: Server, raw: Raw, client: Client
) -> None:
    """A difference: torch then answers that the key exists, although it does not."""
    raw.send(bytes([Op.WAIT]), keys(b"/key"))
    raw.ping()
    assert client.compare_set("key", "different", "new") == b"different"
    if server.name == "torch":
        assert raw.receive(1) == protocol.STOP_WAITING
    raw.ask(Op.CANCEL_WAIT, answer=protocol.WAIT_CANCELED)
    assert not client.check(["key"])


# Clients that vanish


@pytest.mark.parametrize("waits", [(b"/key",), (b"/key", b"/other")], ids=["one key", "two keys"])
def test_the_server_survives_a_client_that_vanishes_in_a_wait(
    raw: Raw, client: Client, waits: tuple[bytes, ...]
) -> None:
    raw.send(bytes([Op.WAIT]), keys(*waits))
    raw.ping()
    raw.close()
    client.set("key", "value")
    client.set("other", "value")
    assert client.get("key") == b"value"


def test_the_server_survives_a_client_that_vanishes_in_a_barrier(raw: Raw, client: Client) -> None:
    raw.send(bytes([Op.BARRIER]), text(b"/key"), integer(2))
    raw.ping()
    raw.close()
    client.barrier("other", 1, PATIENCE)


HALVES = {
    "nothing": b"",
    "command": bytes([Op.SET]),
    "length": bytes([Op.SET]) + b"\1\0",
    "key": bytes([Op.SET]) + integer(3) + b"ke",
    "value": bytes([Op.SET]) + text(b"/key") + integer(9) + b"value",
    "keys": bytes([Op.WAIT]) + integer(3) + text(b"/key"),
    "addend": bytes([Op.ADD]) + text(b"/key") + b"\1\0\0",
}


@pytest.mark.parametrize("half", HALVES)
def test_half_a_request_changes_nothing(raw: Raw, client: Client, half: str) -> None:
    raw.send(HALVES[half])
    raw.connection.shutdown(socket.SHUT_WR)
    raw.assert_closed()
    assert client.num_keys() == 0


def test_half_a_multi_set(server: Server, raw: Raw, client: Client) -> None:
    """A difference: torch carries out the half that it got."""
    raw.send(bytes([Op.MULTI_SET]), integer(2), text(b"/key"), text(b"value"))
    raw.connection.shutdown(socket.SHUT_WR)
    raw.assert_closed()
    assert client.num_keys() == (1 if server.name == "torch" else 0)


# Clients that break the rules


def test_wrong_magic(stranger: Raw, client: Client) -> None:
    """Torch closes at the next thing it reads; whether that is at once is up to the network."""
    stranger.send(bytes([Op.VALIDATE]), b"\0\0\0\0")
    stranger.connection.settimeout(0.05)
    while True:
        try:
            stranger.send(bytes([Op.PING]), b"ping")
            assert stranger.connection.recv(1) == b""
        except TimeoutError:
            continue
        except ConnectionError:
            pass
        break
    client.set("key", "")
    assert client.num_keys() == 1


def test_a_request_before_validation(server: Server, stranger: Raw, client: Client) -> None:
    """A difference: torch neither answers nor closes; when more comes, it obeys after all."""
    stranger.send(bytes([Op.ADD]), text(b"/key"), integer(1))
    if server.name == "torch":
        client.set("unrelated", "")
    else:
        stranger.assert_closed()
        assert client.num_keys() == 0


def test_second_validation(raw: Raw) -> None:
    raw.send(HELLO)
    raw.assert_closed()


@pytest.mark.parametrize(
    "garbage",
    [bytes([BROKEN]), b"\xff" * 100, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes([19])],
    ids=["unknown", "ones", "http", "one after the last"],
)
def test_garbage(raw: Raw, client: Client, garbage: bytes) -> None:
    raw.ping()
    raw.send(garbage)
    raw.assert_closed()
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_garbage_ends_a_wait(raw: Raw, client: Client) -> None:
    raw.send(bytes([Op.WAIT]), keys(b"/key"))
    raw.ping()
    raw.send(bytes([BROKEN]))
    raw.assert_closed()
    client.set("key", "value")
    assert client.get("key") == b"value"


KEY = text(b"k" * protocol.MAX_KEY_BYTES)
VALUE = text(b"v" * protocol.MAX_VALUE_BYTES)
LARGEST = {
    "key of SET": (Op.SET, KEY + text(b""), b""),
    "value of SET": (Op.SET, text(b"/key") + VALUE, b""),
    "value of APPEND": (Op.APPEND, text(b"/key") + VALUE, b""),
    "value of COMPARE_SET": (Op.COMPARE_SET, text(b"/key") + text(b"") + VALUE, VALUE),
    "value of QUEUE_PUSH": (Op.QUEUE_PUSH, text(b"/key") + VALUE, b""),
    "key of CHECK": (Op.CHECK, integer(1) + KEY, protocol.NOT_READY),
    "keys of CHECK": (Op.CHECK, keys(*[b""] * protocol.MAX_KEYS), protocol.NOT_READY),
    "keys of MULTI_GET": (
        Op.MULTI_GET,
        keys(*[b""] * protocol.MAX_KEYS),
        text(b"") * protocol.MAX_KEYS,
    ),
    "pairs of MULTI_SET": (
        Op.MULTI_SET,
        integer(protocol.MAX_KEYS) + (text(b"") * 2) * protocol.MAX_KEYS,
        b"",
    ),
}


@pytest.mark.parametrize("what", LARGEST)
def test_largest(raw: Raw, what: str) -> None:
    op, arguments, answer = LARGEST[what]
    raw.ask(op, arguments, answer=answer)
    raw.ping()


LONG_KEY = integer(protocol.MAX_KEY_BYTES + 1)
LONG_VALUE = integer(protocol.MAX_VALUE_BYTES + 1)
MANY = integer(protocol.MAX_KEYS + 1)
TOO_LARGE = {
    "key of SET": (Op.SET, LONG_KEY),
    "value of SET": (Op.SET, text(b"/key") + LONG_VALUE),
    "value of APPEND": (Op.APPEND, text(b"/key") + LONG_VALUE),
    "expectation of COMPARE_SET": (Op.COMPARE_SET, text(b"/key") + LONG_VALUE),
    "value of COMPARE_SET": (Op.COMPARE_SET, text(b"/key") + text(b"") + LONG_VALUE),
    "value of QUEUE_PUSH": (Op.QUEUE_PUSH, text(b"/key") + LONG_VALUE),
    "key of CHECK": (Op.CHECK, integer(1) + LONG_KEY),
    "keys of CHECK": (Op.CHECK, MANY),
    "keys of WAIT": (Op.WAIT, MANY),
    "keys of MULTI_GET": (Op.MULTI_GET, MANY),
    "pairs of MULTI_SET": (Op.MULTI_SET, MANY),
    "negative length": (Op.GET, integer(-1)),
    "negative count": (Op.WAIT, integer(-1)),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_too_large(raw: Raw, client: Client, what: str) -> None:
    op, arguments = TOO_LARGE[what]
    raw.send(bytes([op]), arguments)
    raw.assert_closed()
    assert client.num_keys() == 0
