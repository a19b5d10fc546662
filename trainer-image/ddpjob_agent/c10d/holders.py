"""Which workers keep writes of which keys, and what they need not keep any more.

A worker keeps its writes until the service asks it to forget them. The service asks when a later
write of another worker has replaced them, and only after that worker has the answer to it: until
then the older write could be the only one left after a restart of the service.

A deleted key takes two rounds. First, all workers forget what came before the deletion. When they
have confirmed that, no worker needs the deletion itself.

May not: wait, open a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpjob_agent.c10d.writes import Forget, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddpjob_agent.c10d.writes import Write


class _Held:
    def __init__(self) -> None:
        self.what = Forget(0, 0)
        self.workers: set[str] = set()  # those that may keep writes of this key
        self.asked: set[str] = set()  # those of them that have not confirmed `what`


class Holders:
    """The workers that keep writes of one store."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Held] = {}
        self._asks: dict[str, dict[bytes, None]] = {}  # keys by worker

    def __len__(self) -> int:
        return len(self._keys)

    def settle(self, worker: str, writes: Iterable[Write]) -> None:
        """Record writes of which this worker knows."""
        for write in writes:
            held = self._keys.setdefault(write.key, _Held())
            held.workers.add(worker)
            if write.kind is Kind.VALUE and write.version > held.what.below:
                self._set(write.key, held, held.what._replace(below=write.version), {worker})
            elif write.kind is Kind.POP and write.version > held.what.upto:
                self._set(write.key, held, held.what._replace(upto=write.version), {worker})
            elif write.version < held.what.below or write.version <= held.what.upto:
                self._ask(worker, write.key, held)

    def asks(self, worker: str, limit: int) -> list[tuple[bytes, Forget]]:
        """Return what to ask this worker; the same again until it has confirmed."""
        keys = list(self._asks.get(worker, ()))[:limit]
        return [(key, self._keys[key].what) for key in keys]

    def asked(self, worker: str) -> int:
        """Return the number of keys for which this worker has not confirmed."""
        return len(self._asks.get(worker, ()))

    def confirm(self, worker: str, key: bytes, what: Forget, *, left: bool) -> None:
        """Record that a worker has forgotten; `left`: it still keeps other writes of the key."""
        held = self._keys.get(key)
        if held is None or held.what != what:
            return
        self._withdraw(worker, key, held)
        if not left:
            held.workers.discard(worker)
            if not held.workers:
                del self._keys[key]

    def settled_at(self, key: bytes) -> int | None:
        """Return the version before which no worker keeps anything of the value; None: not yet."""
        held = self._keys.get(key)
        if held is None or held.asked:
            return None
        return held.what.below

    def retire(self, key: bytes) -> None:
        """Ask all workers to forget a deleted key."""
        held = self._keys[key]
        self._set(key, held, Forget(held.what.below + 1, held.what.upto + 1), set())

    def _set(self, key: bytes, held: _Held, what: Forget, known_to: set[str]) -> None:
        held.what = what
        for worker in held.workers - (known_to - held.asked):
            self._ask(worker, key, held)

    def _ask(self, worker: str, key: bytes, held: _Held) -> None:
        held.asked.add(worker)
        self._asks.setdefault(worker, {})[key] = None

    def _withdraw(self, worker: str, key: bytes, held: _Held) -> None:
        held.asked.discard(worker)
        keys = self._asks.get(worker)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._asks[worker]
