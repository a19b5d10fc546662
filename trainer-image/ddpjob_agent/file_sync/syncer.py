"""Replicates the files that an unchanged script saves its state to: the agent's side of `files`.

    no process runs ──► send the inventory ──► install the replica of the instruction ──► go
    go              ──► watch the files; whenever they are complete and unchanged, store a replica
                        and send the inventory; if instructed, fetch a replica of another worker

A thread does all blocking disk operations. Only the newest instruction of the service counts. A
full disk is reported, and interrupts nothing.
May not: start or end processes, or choose the replica to install.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ddpjob_agent.file_sync.fetcher import DiskFullError, ReplicaFetcher
from ddpjob_agent.file_sync.replica import FileInstruction, FileInventory
from ddpjob_agent.file_sync.transfer import ReplicaServer
from ddpjob_agent.file_sync.watcher import FileWatcher, log_task_failure
from ddpjob_protocol.codec import decode, encode

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.inventory import At, LocalReplicas
    from ddpjob_agent.file_sync.local_files import FileFingerprint
    from ddpjob_protocol.membership import Membership
    from ddpjob_protocol.messages import Message

RETRY_SECONDS = 0.5
GET_SECONDS = 120.0  # to fetch the replica that a membership starts from
FAREWELL_SECONDS = 2.0  # for the service to answer a leaving worker

T = TypeVar("T")

log = logging.getLogger("ddpjob.files")


class FileSyncer:
    """The file sync of one worker; inactive before `listen`.

    Calls `changed` whenever `may_start` may have become true.
    """

    def __init__(
        self,
        holdings: LocalReplicas,
        token: str,
        send: Callable[[Message], None],
        changed: Callable[[], None],
    ) -> None:
        self._holdings = holdings
        self._token = token
        self._send = send
        self._changed = changed
        self._exchange = ReplicaServer(token, holdings.find, self._discard)
        self._following: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "files")
        self._stock = FileInventory("")
        self._word: FileInstruction | None = None
        self._members: tuple[str, ...] = ()
        self._news = asyncio.Event()
        self._entered = ""  # the scope that the installed replica is assigned to
        self._is_idle = True  # no process of the script runs
        self._ran = ""  # the membership of the latest processes
        self._watch: FileWatcher | None = None  # of these processes
        self.obstacle = ""  # error of the installation

    async def listen(self, address: str) -> None:
        """Serve replicas to other workers and follow instructions. Raises OSError."""
        await self._exchange.listen(address)
        me = (address, self._exchange.port)
        self._getter = ReplicaFetcher(self._holdings, self._token, self._on_disk, me)
        self._following = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Stop all activity."""
        if self._following is None:
            return
        self._holdings.cancel()
        self._following.cancel()
        if self._watch is not None:
            self._watch.stop()
        self._exchange.close()
        self._disk.shutdown(wait=False)

    # --- calls of the agent -----------------------------------------------------------------------

    def inventory_message(self) -> Message | None:
        """Return the last inventory, for a service that lost its state; None if there is none."""
        return encode(self._stock) if self._stock.scope else None

    def on_order(self, order: Message) -> None:
        """Handle an order of the service, and its instruction about files if it has one."""
        said = order.get("files") if self._following is not None else None
        word = decode(FileInstruction, said) if said else None
        if word == self._word:
            return
        old, self._word = self._word, word
        if order["type"] == "run":
            self._members = tuple(each["worker"] for each in order["membership"]["members"])
        if word is not None and old is not None and word.scope == old.scope:
            self._note_loss(old, word)
        if word is None or old is None or word.scope != old.scope:
            self.obstacle = ""
        self._news.set()

    @staticmethod
    def _note_loss(old: FileInstruction, new: FileInstruction) -> None:
        if old.copy is None or not (old.put and new.put):
            return
        if new.copy is None or new.copy.order < old.copy.order:
            log.warning(
                "no worker has %s any more: resuming from %s", old.copy, new.copy or "nothing"
            )

    def on_idle(self) -> None:
        """Handle the end of all processes of the script."""
        if self._watch is not None:
            self._watch.stop()
        self._is_idle = True
        self._news.set()

    def may_start(self, membership: Membership) -> bool:
        """Return whether all members have installed the replica of this membership."""
        if self._word is None or self.obstacle:
            return True
        return self._entered == self._word.scope == str(membership.id)

    def start(self, membership: Membership) -> None:
        """Start watching: the processes of this membership are about to start."""
        self._is_idle = False
        self._ran = str(membership.id)
        self._watch = None
        if self._word is not None:
            tell = functools.partial(self._send_inventory, self._ran)
            self._watch = FileWatcher(self._holdings, self._ran, self._on_disk, tell)
            self._send_message(dataclasses.replace(self._stock, here=None, begun=True))

    def hurry(self) -> None:
        """Check at once whether the processes write; a planned end is due."""
        if self._watch is not None:
            self._watch.hurry()

    @property
    def is_writing(self) -> bool:
        """True while the files change, are incomplete, or are not stored; see `hurry`."""
        return self._watch is not None and self._watch.is_writing

    def must_wait_for_copy(self, left_for: float) -> bool:
        """Return whether other workers need a replica of this worker.

        The worker has been leaving for `left_for` seconds.
        """
        word = self._word
        if word is None:
            return False
        if word.scope == self._ran and word.go:  # the service has not answered yet
            return left_for < FAREWELL_SECONDS
        return word.wait

    # --- instructions of the service --------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            acting = asyncio.ensure_future(self._execute(self._word))
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({acting, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                while not acting.done():  # before Python 3.12 one cancellation may be swallowed
                    acting.cancel()
                    await asyncio.wait({acting}, timeout=0.5)
            log_task_failure(acting)

    async def _execute(self, word: FileInstruction | None) -> None:
        if word is None:
            return
        holdings = self._holdings
        if not self._is_idle:
            if word.keep:
                await self._store_for_others(word)
        elif self._stock.scope != word.scope:
            await self._on_disk(holdings.scan_after_exit, self._written_at)
            await self._send_inventory(word.scope)
        elif word.go and self._entered != word.scope:
            await self._on_disk(holdings.on_membership, word.scope, self._members)
            self._entered = word.scope
            self._changed()
        elif word.keep:
            await self._store_for_others(word)
        elif word.put and {holdings.here, self._stock.here} != {word.digest}:
            await self._install(word)  # only reports, if a cancelled run installed it

    def _written_at(self, seen: tuple[FileFingerprint, ...]) -> At | None:
        """Return the time of these files, if this agent watched them."""
        return self._watch.written_at(seen) if self._watch is not None else None

    async def _install(self, word: FileInstruction) -> None:
        """Install the replica of the instruction; on failure, set the obstacle."""
        until = time.monotonic() + GET_SECONDS
        try:
            await self._install_until(word, until)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            what = f"{error.strerror or error}{where}"
            self.obstacle = f"the script's files cannot be put in place: {what}"
            self._changed()
        else:
            await self._send_inventory(word.scope)

    async def _install_until(self, word: FileInstruction, until: float) -> None:
        holdings, straight = self._holdings, False
        while holdings.here != word.digest:
            if word.copy is None:
                await self._on_disk(holdings.clear)
            elif not await self._on_disk(holdings.install, word.copy):
                if self._stock.has(word.digest):
                    await self._send_inventory(word.scope)  # the stored replica was corrupt
                try:
                    given = await self._getter.fetch(word.copy, word.holders, bypass_store=straight)
                except DiskFullError:
                    given = straight = True
                if not given:
                    await asyncio.sleep(RETRY_SECONDS)
                if time.monotonic() > until:
                    raise OSError(0, f"nobody gave them within {GET_SECONDS:.0f} s")

    async def _store_for_others(self, word: FileInstruction) -> None:
        assert word.copy is not None
        with contextlib.suppress(DiskFullError):
            while not self._holdings.find(word.digest):
                if not await self._getter.fetch_for_others(word.copy, word.holders):
                    await asyncio.sleep(RETRY_SECONDS)
        await self._send_inventory(word.scope)

    def _discard(self, digest: str) -> None:
        self._holdings.discard(digest)
        self._telling = asyncio.ensure_future(self._send_inventory(self._stock.scope))

    async def _send_inventory(self, scope: str) -> None:
        """Send the current inventory for this scope."""
        holdings, still = self._holdings, self._is_idle
        copies = await self._on_disk(functools.partial(holdings.replicas, stable=still))
        here = holdings.here if still else None
        port, problem = self._exchange.port, holdings.problem
        self._send_message(FileInventory(scope, copies, here, not still, port, problem))

    def _send_message(self, stock: FileInventory) -> None:
        self._stock = stock
        self._send({"type": "files", **encode(stock)})

    async def _on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._disk, work, *arguments)
