"""The c10d key space by itself: its answers, the entries that its writes hand out, restore()."""

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
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request, decode_request
from ddpjob_agent.c10d.server import StoreBackend, serve_client
from ddpjob_agent.c10d.store import Applied, Entry, Store
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
    Entry(b"n", 11, b"41"),
    Entry(b"s", 12, b"text"),
    Entry(b"q", 13, None, (b"1", b"2")),
    Entry(b"both", 14, b"v", (b"1",)),
    Entry(b"gone", 15),
)


@pytest.fixture
def store() -> Store:
    store = Store()
    store.restore(CONTENT)
    return store


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_apply(store: Store, case: Case) -> None:
    applied = store.apply(case.request)
    if case.reply is MUST_WAIT:
        assert applied is None
        assert store.entries() == CONTENT
    else:
        changed = () if case.key is None else (Entry(case.key, 16, case.value, case.queue),)
        assert applied == Applied(case.reply, changed)
        assert set(changed) <= set(store.entries())


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
    applied = store.apply(Request(Op.MULTI_SET, (b"a", b"b"), (b"1", b"2")))
    assert applied == Applied(b"", (Entry(b"a", 16, b"1"), Entry(b"b", 17, b"2")))


def test_restore_keeps_a_deleted_key_deleted(store: Store) -> None:
    assert store.restore([Entry(b"gone", 3, b"old")]) == ()
    assert store.apply(Request(Op.GET, (b"gone",))) == Applied(text(b""))


def test_restore_after_a_write_lets_the_higher_version_win(store: Store) -> None:
    store.apply(Request(Op.SET, (b"x",), (b"new",)))
    newer, older = Entry(b"s", 99, b"newer"), Entry(b"x", 15, b"older")
    assert store.restore([newer, older]) == (newer,)
    applied = store.apply(Request(Op.MULTI_GET, (b"s", b"x")))
    assert applied == Applied(text(b"newer") + text(b"new"))
    applied = store.apply(Request(Op.SET, (b"y",), (b"",)))
    assert applied is not None
    assert applied.changed[0].version == 100


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


@given(writes=st.lists(st.tuples(st.integers(0, 3), WRITES)), chance=st.randoms())
def test_the_writers_give_back_the_key_space(
    writes: list[tuple[int, Request]], chance: random.Random
) -> None:
    store = Store()
    kept: list[dict[bytes, Entry]] = [{}, {}, {}, {}]
    for agent, request in writes:
        try:
            applied = store.apply(request)
        except ProtocolError:
            continue
        assert applied is not None
        kept[agent].update({entry.key: entry for entry in applied.changed})

    restored = Store()
    chance.shuffle(kept)
    for entries in kept:
        travelled = json.loads(json.dumps([encode(entry) for entry in entries.values()]))
        restored.restore(decode(Entry, each) for each in travelled)

    assert set(restored.entries()) == set(store.entries())
    last = Request(Op.SET, (b"last",), (b"",))
    assert restored.apply(last) == store.apply(last)


REQUESTS = [
    Request(Op.COMPARE_SET, (b"\xff\x00",), (b"", b"\x80")),
    Request(Op.MULTI_SET, (b"a", b"b"), (b"1", b"2")),
    Request(Op.WAIT, (b"a", b"b")),
    Request(Op.ADD, (b"a",), (), -(2**63)),
    Request(Op.LIST_KEYS),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.op.name)
def test_request_json(request_: Request) -> None:
    assert decode_request(json.loads(json.dumps(encode(request_)))) == request_


@pytest.mark.parametrize(
    "change",
    [
        {"op": 99},
        {"op": None},
        {"keys": []},
        {"keys": ["YQ==", "YQ=="]},
        {"keys": ["not base64"]},
        {"keys": 7},
        {"keys": ["YWFh" * (protocol.MAX_KEY_BYTES // 3 + 1)]},
        {"values": ["YQ=="]},
        {"number": "1"},
        {"number": 2**63},
        {"number": True},
    ],
    ids=lambda change: str(change)[:30],
)
def test_request_json_is_checked(change: dict[str, object]) -> None:
    data = {"op": Op.ADD.value, "keys": ["YQ=="], "values": [], "number": 1}
    assert decode_request(data) == Request(Op.ADD, (b"a",), (), 1)
    with pytest.raises(ProtocolError):
        decode_request({**data, **change})


@pytest.mark.parametrize("name", ["op", "keys"])
def test_incomplete_request_is_refused(name: str) -> None:
    data = encode(Request(Op.ADD, (b"a",), (), 1))
    del data[name]
    with pytest.raises(ProtocolError):
        decode_request(data)


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


def test_restore_ends_waits() -> None:
    async def scenario() -> None:
        backend = StoreBackend(Store())
        wait = await settled(backend, Request(Op.WAIT, (b"a",)))
        backend.restore([Entry(b"a", 1, b"")])
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
        assert second == Applied(b"\0", (Entry(b"a", 2, b"2"),))
        assert await first == Applied(b"\0", (Entry(b"a", 1, b"1"),))

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
