"""Workers forget writes, and the store can still be rebuilt from what they keep, at any moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ddpjob_agent.c10d.holders import Holders
from ddpjob_agent.c10d.protocol import Op, ProtocolError, Request
from ddpjob_agent.c10d.store import Store
from ddpjob_agent.c10d.writes import Kind, OwnWrites, Write, writes_of

KEYS = (b"a", b"b")
WORKERS = ("w0", "w1", "w2")


@dataclass
class Worker:
    """A worker and its connection; answers arrive in order."""

    own: OwnWrites
    answers: deque[tuple[Write, ...]]  # on their way
    unsettled: list[tuple[Write, ...]]  # arrived; the service does not know it


class Job:
    """A store with three workers, whose messages arrive at any time."""

    def __init__(self) -> None:
        self.store = Store()
        self.holders = Holders()
        self.workers = {name: Worker(OwnWrites(), deque(), []) for name in WORKERS}
        self.delivered: list[Write] = []

    def write(self, name: str, request: Request) -> None:
        try:
            applied = self.store.apply(request)
        except ProtocolError:
            return
        assert applied is not None
        self.workers[name].answers.append(writes_of(request, applied.version, applied.total))

    def deliver(self, name: str) -> None:
        worker = self.workers[name]
        if worker.answers:
            writes = worker.answers.popleft()
            worker.unsettled.append(writes)
            self.delivered += writes
            for write in writes:
                worker.own.add(write)

    def settle(self, name: str) -> None:
        unsettled, self.workers[name].unsettled = self.workers[name].unsettled, []
        for writes in unsettled:
            self.holders.settle(name, writes)
            for write in writes:
                self.drop_if_dead(write.key)

    def ask(self, name: str) -> bool:
        """Ask a worker to forget; return whether there was anything to ask."""
        asks = self.holders.asks(name, 10)
        for key, what in asks:
            left = self.workers[name].own.forget(key, what)
            self.holders.confirm(name, key, what, left=left)
            self.drop_if_dead(key)
        return bool(asks)

    def ask_and_check(self, name: str) -> bool:
        asked = self.ask(name)
        self.check()
        return asked

    def drop_if_dead(self, key: bytes) -> None:
        version = self.holders.settled_at(key)
        if version is not None and self.store.forget_if_dead(key, version):
            self.holders.retire(key)

    def check(self) -> None:
        """Check that the writes that the workers keep are as good as all that they ever knew."""
        kept = Store([write for worker in self.workers.values() for write in worker.own])
        known = Store(self.delivered)
        for key in KEYS:
            for request in (Request(Op.GET, (key,)), Request(Op.QUEUE_LEN, (key,))):
                assert kept.apply(request) == known.apply(request)
            assert kept.has_value(key) == known.has_value(key)

    def come_to_rest(self) -> None:
        for name in WORKERS:
            while self.workers[name].answers:
                self.deliver(name)
            self.settle(name)
        while [name for name in reversed(WORKERS) if self.ask_and_check(name)]:
            pass


A_KEY = st.sampled_from(KEYS)
REQUESTS = st.one_of(
    st.builds(lambda k: Request(Op.SET, (k,), (b"value",)), A_KEY),
    st.builds(lambda k: Request(Op.ADD, (k,), (), 1), A_KEY),
    st.builds(lambda k: Request(Op.APPEND, (k,), (b"1",)), A_KEY),
    st.builds(lambda k: Request(Op.DELETE_KEY, (k,)), A_KEY),
    st.builds(lambda k: Request(Op.QUEUE_PUSH, (k,), (b"item",)), A_KEY),
    st.builds(lambda k: Request(Op.QUEUE_POP, (k,)), A_KEY),
)
ACTIONS = st.one_of(REQUESTS, st.sampled_from(["deliver", "settle", "ask"]))


@given(actions=st.lists(st.tuples(st.sampled_from(WORKERS), ACTIONS), max_size=60))
def test_what_workers_forget_is_never_missing(actions: list[tuple[str, Request | str]]) -> None:
    job = Job()
    for name, action in actions:
        if isinstance(action, Request):
            job.write(name, action)
        elif action == "deliver":
            job.deliver(name)
        elif action == "settle":
            job.settle(name)
        else:
            job.ask(name)
        job.check()
    job.come_to_rest()
    job.check()
    kept = [write for worker in job.workers.values() for write in worker.own]
    values = [write.key for write in kept if write.kind is Kind.VALUE]
    assert len(values) == len(set(values)), "one value of each key is left"
    for key in KEYS:  # now all keys end
        job.write("w1", Request(Op.DELETE_KEY, (key,)))
        for _ in range(len(actions)):
            job.write("w2", Request(Op.QUEUE_POP, (key,)))
    job.come_to_rest()
    assert [list(worker.own) for worker in job.workers.values()] == [[], [], []]
    assert (len(job.holders), len(job.store)) == (0, 0), "nothing is left of deleted keys"
