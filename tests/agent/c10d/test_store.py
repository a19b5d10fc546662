"""The c10d key space by itself: its answers, and its restoration from the writes."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent.c10d import protocol
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request, decode_request, encode_request
from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Applied, Store
from ddpjob_agent.c10d.writes import Kind, OwnWrites, Write, writes_of
from ddpjob_protocol.codec import decode, encode

MUST_WAIT = None


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@dataclass
class Case:
    id: str
    request: Request
    reply: bytes | None
    key: bytes | None = None  # which key changed, and to what
    value: bytes | None = None
    queue: tuple[bytes, ...] = ()


def case_id(case: Case) -> str:
    return case.id


# Applied to a store that holds: n = 41, s = "text", q = queue of two, both = "v" and queue of one.
CASES = [
    Case("set new", Request(Op.SET, (b"x",), (b"1",)), b"", b"x", b"1"),
    Case("set replaces", Request(Op.SET, (b"s",), (b"1",)), b"", b"s", b"1"),
    Case("set empty", Request(Op.SET, (b"s",), (b"",)), b"", b"s", b""),
    Case("set keeps queue", Request(Op.SET, (b"both",), (b"w",)), b"", b"both", b"w", (b"1",)),
    Case("get", Request(Op.GET, (b"s",)), text(b"text")),
    Case("get missing", Request(Op.GET, (b"x",)), text(b"")),
    Case("multi get", Request(Op.MULTI_GET, (b"n", b"x")), text(b"41") + text(b"")),
    Case("multi set", Request(Op.MULTI_SET, (b"x",), (b"1",)), b"", b"x", b"1"),
    Case("multi set nothing", Request(Op.MULTI_SET), b""),
    Case("add new", Request(Op.ADD, (b"x",), (), -3), number(-3), b"x", b"-3"),
    Case("add gives the total", Request(Op.ADD, (b"n",), (), 1), number(42), b"n", b"42"),
    Case(
        "add wraps",
        Request(Op.ADD, (b"n",), (), 2**63 - 1),
        number(40 - 2**63),
        b"n",
        b"%d" % (40 - 2**63),
    ),
    Case(
        "compare_set equal",
        Request(Op.COMPARE_SET, (b"s",), (b"text", b"new")),
        text(b"new"),
        b"s",
        b"new",
    ),
    Case(
        "compare_set unequal",
        Request(Op.COMPARE_SET, (b"s",), (b"other", b"new")),
        text(b"text"),
    ),
    Case(
        "compare_set missing, none expected",
        Request(Op.COMPARE_SET, (b"x",), (b"", b"new")),
        text(b"new"),
        b"x",
        b"new",
    ),
    Case(
        "compare_set missing, some expected",
        Request(Op.COMPARE_SET, (b"x",), (b"other", b"new")),
        text(b"other"),
    ),
    Case("append", Request(Op.APPEND, (b"s",), (b"!",)), b"", b"s", b"text!"),
    Case("append new", Request(Op.APPEND, (b"x",), (b"!",)), b"", b"x", b"!"),
    Case("check here", Request(Op.CHECK, (b"n", b"s", b"q")), b"\0"),
    Case("check missing", Request(Op.CHECK, (b"n", b"x")), b"\1"),
    Case("check nothing", Request(Op.CHECK), b"\0"),
    Case("wait here", Request(Op.WAIT, (b"n", b"s")), b"\0"),
    Case("wait missing", Request(Op.WAIT, (b"n", b"x")), MUST_WAIT),
    Case("wait queue", Request(Op.WAIT, (b"q",)), b"\0"),
    Case("barrier reached", Request(Op.BARRIER, (b"n",), (), 41), b"\0"),
    Case("barrier open", Request(Op.BARRIER, (b"n",), (), 42), MUST_WAIT),
    Case("count keys", Request(Op.GETNUMKEYS), number(3)),
    Case("list keys", Request(Op.LIST_KEYS), number(3) + text(b"n") + text(b"s") + text(b"both")),
    Case("delete", Request(Op.DELETE_KEY, (b"s",)), number(1), b"s"),
    Case(
        "delete keeps queue", Request(Op.DELETE_KEY, (b"both",)), number(1), b"both", None, (b"1",)
    ),
    Case("delete missing", Request(Op.DELETE_KEY, (b"x",)), number(0)),
    Case("delete queue", Request(Op.DELETE_KEY, (b"q",)), number(0)),
    Case("push", Request(Op.QUEUE_PUSH, (b"q",), (b"3",)), b"", b"q", None, (b"1", b"2", b"3")),
    Case("push new", Request(Op.QUEUE_PUSH, (b"x",), (b"1",)), b"", b"x", None, (b"1",)),
    Case("pop", Request(Op.QUEUE_POP, (b"q",)), number(2) + text(b"1"), b"q", None, (b"2",)),
    Case("pop empty", Request(Op.QUEUE_POP, (b"x",)), number(0)),
    Case("pop last", Request(Op.QUEUE_POP, (b"both",)), number(1) + text(b"1"), b"both", b"v"),
    Case("queue length", Request(Op.QUEUE_LEN, (b"q",)), number(2)),
    Case("queue length missing", Request(Op.QUEUE_LEN, (b"s",)), number(0)),
]

CONTENT = (
    Write(Kind.VALUE, b"n", 11, b"41"),
    Write(Kind.VALUE, b"s", 12, b"text"),
    Write(Kind.PUSH, b"q", 13, b"1"),
    Write(Kind.PUSH, b"q", 14, b"2"),
    Write(Kind.VALUE, b"both", 15, b"v"),
    Write(Kind.PUSH, b"both", 16, b"1"),
    Write(Kind.VALUE, b"gone", 17),
)


@pytest.fixture
def store() -> Store:
    return Store(CONTENT)


def content_of(store: Store, key: bytes) -> tuple[bytes | None, tuple[bytes, ...]]:
    """Return value and queue of a key."""
    entry = store._find(key)
    value = None if entry.value is None else bytes(entry.value)
    return value, tuple(item for _, item in entry.queue)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_apply(store: Store, case: Case) -> None:
    keys = {write.key for write in CONTENT}
    before = {key: content_of(store, key) for key in keys}
    applied = store.apply(case.request)
    if case.reply is MUST_WAIT:
        assert applied is None
    else:
        assert applied is not None
        assert applied.reply == case.reply
        assert (applied.version > 0) == (case.key is not None)
        assert applied.changed == (() if case.key is None else (case.key,))
    after = before if case.key is None else {**before, case.key: (case.value, case.queue)}
    assert {key: content_of(store, key) for key in after} == after


@pytest.mark.parametrize(
    ("value", "total"),
    [
        (b" \t+7 apples", 8),
        (b"-007", -6),
        (b"7\x008", 8),
        (b"0" * 100_000 + b"7", 8),
        (b"%d" % -(2**63), 1 - 2**63),
    ],
    ids=["blanks and rest", "zeros", "NUL", "many zeros", "smallest"],
)
def test_add_reads_numbers_as_torch_does(store: Store, value: bytes, total: int) -> None:
    store.apply(Request(Op.SET, (b"x",), (value,)))
    applied = store.apply(Request(Op.ADD, (b"x",), (), 1))
    assert applied is not None
    assert applied.reply == number(total)


@pytest.mark.parametrize(
    "value",
    [b"", b"x1", b"+ 1", b"%d" % 2**63, b"9" * 100_000],
    ids=["empty", "letter", "lone sign", "too big", "absurd"],
)
def test_add_to_no_number_breaks_the_protocol(store: Store, value: bytes) -> None:
    store.apply(Request(Op.SET, (b"x",), (value,)))
    with pytest.raises(ProtocolError):
        store.apply(Request(Op.ADD, (b"x",), (), 1))


@pytest.mark.parametrize("op", [Op.VALIDATE, Op.PING, Op.CANCEL_WAIT])
def test_connection_commands_are_not_for_the_store(store: Store, op: Op) -> None:
    with pytest.raises(ProtocolError):
        store.apply(Request(op))


def test_multi_set_gives_each_key_its_own_version(store: Store) -> None:
    request = Request(Op.MULTI_SET, (b"a", b"b"), (b"1", b"2"))
    assert store.apply(request) == Applied(b"", 18, changed=(b"a", b"b"))
    assert writes_of(request, 18) == (
        Write(Kind.VALUE, b"a", 18, b"1"),
        Write(Kind.VALUE, b"b", 19, b"2"),
    )
    assert store.apply(Request(Op.SET, (b"x",), (b"",))) == Applied(b"", 20, changed=(b"x",))


def test_a_deleted_key_stays_deleted_whatever_is_restored_first() -> None:
    writes = [Write(Kind.VALUE, b"gone", 17), Write(Kind.VALUE, b"gone", 3, b"old")]
    for order in (writes, writes[::-1]):
        assert Store(order).apply(Request(Op.GET, (b"gone",))) == Applied(text(b""))


def test_a_restored_store_continues_after_the_newest_version() -> None:
    assert Store(CONTENT, version=98).apply(Request(Op.SET, (b"x",), (b"",))) == Applied(
        b"", 99, changed=(b"x",)
    )


KEYS = st.sampled_from([b"a", b"b", b"\xff\x00"])
VALUES = st.sampled_from([b"", b"1", b"22"])
WRITES = st.one_of(
    st.builds(lambda k, v: Request(Op.SET, (k,), (v,)), KEYS, VALUES),
    st.builds(lambda k, n: Request(Op.ADD, (k,), (), n), KEYS, st.integers(-2, 2)),
    st.builds(lambda k, v, w: Request(Op.COMPARE_SET, (k,), (v, w)), KEYS, VALUES, VALUES),
    st.builds(lambda k, v: Request(Op.APPEND, (k,), (v,)), KEYS, VALUES),
    st.builds(lambda k, v: Request(Op.QUEUE_PUSH, (k,), (v,)), KEYS, VALUES),
    st.builds(lambda k: Request(Op.QUEUE_POP, (k,)), KEYS),
    st.builds(lambda k: Request(Op.DELETE_KEY, (k,)), KEYS),
    st.lists(st.tuples(KEYS, VALUES), max_size=3).map(
        lambda pairs: Request(Op.MULTI_SET, tuple(k for k, _ in pairs), tuple(v for _, v in pairs))
    ),
)


def apply(store: Store, request: Request) -> tuple[Write, ...]:
    """Apply a request that may be against torch's rules; return its writes."""
    try:
        applied = store.apply(request)
    except ProtocolError:
        return ()
    assert applied is not None
    return writes_of(request, applied.version, applied.total)


@given(writes=st.lists(st.tuples(st.integers(0, 3), WRITES)), chance=st.randoms())
def test_the_writers_give_back_the_key_space(
    writes: list[tuple[int, Request]], chance: random.Random
) -> None:
    store = Store()
    kept = [OwnWrites() for _ in range(4)]
    answers = [(agent, apply(store, request)) for agent, request in writes]
    chance.shuffle(answers)  # answers may arrive in any order
    for agent, made in answers:
        for write in made:
            kept[agent].add(write)

    chance.shuffle(kept)
    travelled = json.loads(json.dumps([encode(write) for own in kept for write in own]))
    restored = Store([decode(Write, each) for each in travelled])

    for key in (b"a", b"b", b"\xff\x00"):
        assert content_of(restored, key) == content_of(store, key)


def test_a_worker_keeps_what_the_store_consists_of() -> None:
    """Not what it has written before, however much that is."""
    store, own = Store(), OwnWrites()
    for number in range(100):
        for request in (
            Request(Op.SET, (b"s",), (b"%d" % number,)),
            Request(Op.ADD, (b"n",), (), 1),
            Request(Op.QUEUE_PUSH, (b"q",), (b"%d" % number,)),
            Request(Op.QUEUE_POP, (b"q",)),
            Request(Op.APPEND, (b"s",), (b"!",)),
        ):
            for write in apply(store, request):
                own.add(write)
    assert sorted((each.key, each.kind) for each in own) == [
        (b"n", Kind.VALUE),
        (b"q", Kind.POP),
        (b"s", Kind.VALUE),
        (b"s", Kind.APPEND),
    ]


REQUESTS = [
    Request(Op.COMPARE_SET, (b"\xff\x00",), (b"", b"\x80")),
    Request(Op.MULTI_SET, (b"a", b"b"), (b"1", b"2")),
    Request(Op.WAIT, (b"a", b"b")),
    Request(Op.ADD, (b"a",), (), -(2**63)),
    Request(Op.LIST_KEYS),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.op.name)
def test_request_bytes(request_: Request) -> None:
    data = encode_request(request_)
    assert decode_request(data) == request_
    for odd in (data[:-1], data + b"x", b""):
        with pytest.raises(ProtocolError):
            decode_request(odd)


@pytest.mark.parametrize(
    "data",
    [
        b"\x63",
        b"\x04" + text(b"a" * (protocol.MAX_KEY_BYTES + 1)) + number(1),
        b"\x01" + text(b"a") + struct.pack("<Q", protocol.MAX_VALUE_BYTES + 1),
        b"\x05" + number(-1),
        b"\x05" + number(protocol.MAX_KEYS + 1),
    ],
    ids=["command", "key", "value", "negative", "keys"],
)
def test_request_bytes_are_checked(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(data)


def test_a_request_is_bounded() -> None:
    value = bytes(protocol.MAX_VALUE_BYTES)
    keys = tuple(b"%d" % at for at in range(8))
    most = Request(Op.MULTI_SET, keys[:7], (value,) * 7)
    assert decode_request(encode_request(most)) == most
    with pytest.raises(ProtocolError, match=r"MULTI_SET request has more than .* bytes; split it"):
        encode_request(Request(Op.MULTI_SET, keys, (value,) * 8))
    pairs = b"".join(text(key) + text(value) for key in keys)
    with pytest.raises(ProtocolError, match=r"MULTI_SET request has more than .* bytes; split it"):
        decode_request(b"\x0b" + number(8) + pairs)


def test_an_answer_is_bounded() -> None:
    store = Store()
    value = bytes(protocol.MAX_VALUE_BYTES)
    for at in range(9):
        store.apply(Request(Op.SET, (b"%d" % at,), (value,)))
    keys = tuple(b"%d" % at for at in range(9))
    assert store.apply(Request(Op.MULTI_GET, keys[:8])) is not None
    with pytest.raises(ProtocolError, match="values of 9 keys have more than"):
        store.apply(Request(Op.MULTI_GET, keys))
    for _ in range(7):
        store.apply(Request(Op.APPEND, (b"0",), (value,)))
    with pytest.raises(ProtocolError, match="APPEND makes a value"):
        store.apply(Request(Op.APPEND, (b"0",), (b"x",)))


async def settled(backend: StoreBackend, request: Request) -> asyncio.Task[Applied]:
    """A task that has got as far as it can without further requests."""
    task = asyncio.create_task(backend.apply(request))
    await asyncio.sleep(0)
    return task


def test_wait_ends_although_the_key_is_deleted_at_once() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        wait = await settled(backend, Request(Op.WAIT, (b"a", b"b")))
        await backend.execute(Request(Op.SET, (b"a",), (b"",)))
        await backend.execute(Request(Op.DELETE_KEY, (b"a",)))
        await asyncio.sleep(0)
        assert not wait.done()
        await backend.execute(Request(Op.SET, (b"b",), (b"",)))
        await backend.execute(Request(Op.DELETE_KEY, (b"b",)))
        assert await wait == Applied(b"\0")

    asyncio.run(scenario())


def test_cancelled_waits_leave_nothing_behind() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        for request in (Request(Op.WAIT, (b"a", b"b")), Request(Op.BARRIER, (b"c",), (), 2)):
            wait = await settled(backend, request)
            wait.cancel()
            await asyncio.wait({wait})
            assert wait.cancelled()
        assert not backend._waiters

    asyncio.run(scenario())


def test_barrier_hands_out_the_arrivals() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        first = await settled(backend, Request(Op.BARRIER, (b"a",), (), 2))
        assert not first.done()
        second = await backend.apply(Request(Op.BARRIER, (b"a",), (), 2))
        assert second == Applied(b"\0", 2, 2, (b"a",))
        assert await first == Applied(b"\0", 1, 1, (b"a",))

    asyncio.run(scenario())


def test_a_cancelled_barrier_counts_once_when_it_is_asked_for_again() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        request = Request(Op.BARRIER, (b"a",), (), 2)
        dropped = await settled(backend, request)
        dropped.cancel()
        await asyncio.wait({dropped})
        again = await settled(backend, request)
        assert not again.done()
        await backend.execute(request)
        assert (await again).reply == b"\0"

    asyncio.run(scenario())


def test_a_barrier_cancelled_after_its_end_stays_passed() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        request = Request(Op.BARRIER, (b"a",), (), 2)
        dropped = await settled(backend, request)
        await backend.execute(request)
        dropped.cancel()
        await asyncio.wait({dropped})
        assert await backend.execute(request) == b"\0"
        assert await backend.execute(Request(Op.GET, (b"a",))) == text(b"3")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "release",
    [
        Request(Op.SET, (b"a",), (b"no number",)),
        Request(Op.SET, (b"a",), (b"2",)),
        Request(Op.ADD, (b"a",), (), 1),
    ],
    ids=["overwritten", "set", "add"],
)
def test_writes_that_end_a_barrier(release: Request) -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        barrier = await settled(backend, Request(Op.BARRIER, (b"a",), (), 2))
        await backend.execute(release)
        assert (await barrier).reply == b"\0"

    asyncio.run(scenario())


def test_a_push_wakes_one_waiter() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        waits = [await settled(backend, Request(Op.WAIT, (b"q",))) for _ in range(2)]
        for served in waits:
            await backend.execute(Request(Op.QUEUE_PUSH, (b"q",), (b"item",)))
            assert await served == Applied(b"\0")
            assert [wait.done() for wait in waits].count(True) == waits.index(served) + 1
            await backend.execute(Request(Op.QUEUE_POP, (b"q",)))

    asyncio.run(scenario())


HELLO = b"\0" + struct.pack("<I", protocol.MAGIC)
WAIT_FOR_KEY = b"\x06" + number(1) + text(b"key")


@pytest.mark.parametrize("goodbye", ["eof", "garbage"])
def test_a_client_that_leaves_in_a_wait_leaves_nothing_behind(goodbye: str) -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        served: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            served.put_nowait(asyncio.create_task(serve_client(reader, writer, backend)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HELLO + WAIT_FOR_KEY + b"\x0dping")
        assert await reader.readexactly(4) == b"ping"
        assert backend._waiters
        if goodbye == "eof":
            writer.write_eof()
        else:
            writer.write(b"\xff")
        assert await reader.read() == b""
        await (await served.get())
        assert not backend._waiters
        assert asyncio.all_tasks() == {asyncio.current_task()}
        writer.close()
        await writer.wait_closed()
        server.close()

    asyncio.run(scenario())


class BrokenBackend:
    """Like the relay's when its connection to the service is lost."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def execute(self, request: Request) -> bytes:
        await asyncio.sleep(0)
        raise self.error


@pytest.mark.parametrize("error", [ProtocolError("no"), ConnectionError("gone")], ids=type)
@pytest.mark.parametrize("request_", [WAIT_FOR_KEY, b"\x07"], ids=["wait", "count keys"])
def test_a_backend_that_fails_ends_the_connection(error: Exception, request_: bytes) -> None:
    async def scenario() -> None:
        served: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(serve_client(reader, writer, BrokenBackend(error)))
            served.put_nowait(task)

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HELLO + request_)
        assert await reader.read() == b""
        await (await served.get())
        writer.close()
        await writer.wait_closed()
        server.close()

    asyncio.run(scenario())


def test_a_client_that_is_gone_without_a_word_is_named_by_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Writer:
        def close(self) -> None:
            """Nothing is open."""

    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.set_exception(ConnectionResetError())
        with caplog.at_level("INFO", "ddpjob.c10d"):
            await serve_client(reader, Writer(), StoreBackend(Store()))  # type: ignore[arg-type]

    asyncio.run(main())
    assert caplog.messages == ["c10d client dropped: ConnectionResetError"]
