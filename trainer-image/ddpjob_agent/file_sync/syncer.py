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

from ddpjob_agent.file_sync.decisions.replica import FileInstruction, FileInventory, newest
from ddpjob_agent.file_sync.fetching import Fetcher
from ddpjob_agent.file_sync.transfer import ReplicaServer
from ddpjob_agent.file_sync.watcher import FileWatcher, log_task_failure
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.messages.warnings import files_refused

if TYPE_CHECKING:
    from ddpjob_agent.file_sync.disk.local_files import FileFingerprint
    from ddpjob_agent.file_sync.inventory import At, LocalReplicas
    from ddpjob_protocol.keys.credentials import Credential
    from ddpjob_protocol.messages.agent import Message
    from ddpjob_protocol.messages.membership import Membership

RETRY_SECONDS = 0.5
INSTALL_SECONDS = 120.0  # to install the replica that a membership starts from
FAREWELL_SECONDS = 2.0  # for the service to answer a leaving worker

T = TypeVar("T")

log = logging.getLogger("ddpjob.files")


class FileSyncer:
    """The file sync of one worker; inactive before `listen`.

    Calls `changed` whenever `may_start` may have become true.
    """

    def __init__(
        self,
        replicas: LocalReplicas,
        key: Credential,
        send: Callable[[Message], None],
        changed: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._send = send
        self._changed = changed
        self._server = ReplicaServer(key.key, replicas.find, self._recheck)
        self._following: asyncio.Task[None] | None = None
        self._disk = ThreadPoolExecutor(1, "files")
        self._fetcher = Fetcher(replicas, key, self._disk, self._on_disk)
        self._inventory = FileInventory("")  # that was sent last
        self._instruction: FileInstruction | None = None
        self._members: tuple[str, ...] = ()
        self._news = asyncio.Event()
        self._entered = ""  # the scope that the installed replica is assigned to
        self._is_idle = True  # no process of the script runs
        self._ran = ""  # the membership of the latest processes
        self._watch: FileWatcher | None = None  # of these processes
        self.install_error = ""  # error of the installation

    async def listen(self, address: str) -> None:
        """Serve replicas to other workers and follow instructions. Raises OSError."""
        await self._server.listen(address)
        self._me = (address, self._server.port)
        self._following = asyncio.ensure_future(self._run())

    def close(self) -> None:
        """Stop all activity."""
        if self._following is None:
            return
        self._replicas.cancel()
        self._following.cancel()
        if self._watch is not None:
            self._watch.stop()
        self._server.close()
        self._disk.shutdown(wait=False)

    # --- calls of the agent -----------------------------------------------------------------------

    def inventory_message(self) -> Message | None:
        """Return the last inventory, for a service that lost its state; None if there is none."""
        return encode(self._inventory) if self._inventory.scope else None

    def on_order(self, order: Message) -> None:
        """Handle an order of the service, and its instruction about files if it has one."""
        found = order.get("files") if self._following is not None else None
        new = decode(FileInstruction, found) if found else None
        old = self._instruction
        if new == old:
            return
        self._instruction = new
        if order["type"] == "run":
            self._members = tuple(each["worker"] for each in order["membership"]["members"])
        if new is None or old is None or new.scope != old.scope:
            self.install_error = ""
        elif (
            old.copy
            and old.put
            and new.put
            and newest(filter(None, (old.copy, new.copy))) != new.copy
        ):
            lost, instead = old.copy, new.copy or "nothing"
            log.warning("no worker has %s any more: resuming from %s", lost, instead)
        self._news.set()

    def on_idle(self) -> None:
        """Handle the end of all processes of the script."""
        if self._watch is not None:
            self._watch.stop()
        self._is_idle = True
        self._news.set()

    def may_start(self, membership: Membership) -> bool:
        """Return whether all members have installed the replica of this membership."""
        if self._instruction is None or self.install_error:
            return True
        return self._entered == self._instruction.scope == str(membership.id)

    def start(self, membership: Membership) -> None:
        """Start watching: the processes of this membership are about to start."""
        self._is_idle = False
        self._ran = str(membership.id)
        self._watch = None
        if self._instruction is not None:
            tell = functools.partial(self._send_inventory, self._ran)
            self._watch = FileWatcher(self._replicas, self._ran, self._on_disk, tell)
            self._send_message(dataclasses.replace(self._inventory, installed=None, begun=True))

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
        instruction = self._instruction
        if instruction is None:
            return False
        if instruction.scope == self._ran and instruction.go:  # the service has not answered yet
            return left_for < FAREWELL_SECONDS
        return instruction.wait

    # --- instructions of the service --------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            acting = asyncio.ensure_future(self._execute(self._instruction))
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({acting, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                while not acting.done():  # before Python 3.12 one cancellation may be swallowed
                    acting.cancel()
                    await asyncio.wait({acting}, timeout=0.5)
            log_task_failure(acting)

    async def _execute(self, instruction: FileInstruction | None) -> None:
        if instruction is None:
            return
        replicas, scope = self._replicas, instruction.scope
        if not self._is_idle:
            if instruction.keep:
                await self._store_for_others(instruction)
        elif self._inventory.scope != scope:
            await self._scan(scope)
        elif instruction.go and self._entered != scope:
            await self._on_disk(replicas.on_membership, scope, self._members)
            self._entered = scope
            self._changed()
        elif instruction.keep:
            await self._store_for_others(instruction)
        elif instruction.put and not (
            replicas.installed_digest == self._inventory.installed == instruction.digest
        ):
            await self._install(instruction)  # only reports, if a cancelled run installed it

    async def _scan(self, scope: str) -> None:
        try:
            await self._on_disk(self._replicas.files.check_folders)
        except OSError as error:
            self._set_install_error(error)
        await self._on_disk(self._replicas.scan_after_exit, self._written_at, self._members)
        await self._send_inventory(scope)

    def _written_at(self, seen: tuple[FileFingerprint, ...]) -> At | None:
        """Return the time of these files, if this agent watched them."""
        return self._watch.written_at(seen) if self._watch is not None else None

    async def _install(self, instruction: FileInstruction) -> None:
        """Install the replica of the instruction, or refuse it; on failure, set `install_error`."""
        until = time.monotonic() + INSTALL_SECONDS
        replicas, digest = self._replicas, instruction.digest
        try:
            while replicas.installed_digest != digest and digest not in replicas.refused.digests:
                if not await self._try_to_install(instruction):
                    if time.monotonic() > until:
                        raise OSError(0, f"no worker sent a replica within {INSTALL_SECONDS:.0f} s")
                    await asyncio.sleep(RETRY_SECONDS)
        except OSError as error:
            self._set_install_error(error)
        else:
            await self._send_inventory(instruction.scope)

    def _set_install_error(self, error: OSError) -> None:
        where = f" ({error.filename})" if error.filename else ""
        what = f"{error.strerror or error}{where}"
        self.install_error = f"the script's files cannot be installed: {what}"
        self._changed()

    async def _try_to_install(self, instruction: FileInstruction) -> bool:
        if instruction.copy is None:
            await self._on_disk(self._replicas.clear)
            return True
        if await self._on_disk(self._replicas.install, instruction.copy):
            return True
        if self._inventory.has(instruction.digest):
            await self._send_inventory(instruction.scope)  # the stored replica was corrupt
        return await self._fetch(instruction, to_store=False)

    async def _store_for_others(self, instruction: FileInstruction) -> None:
        try:
            replicas, digest = self._replicas, instruction.digest
            while not (replicas.find(digest) or digest in replicas.refused.digests):
                if not await self._fetch(instruction, to_store=True):
                    await asyncio.sleep(RETRY_SECONDS)
        except OSError as error:
            self._replicas.set_problem(error)
        await self._send_inventory(instruction.scope)

    async def _fetch(self, instruction: FileInstruction, *, to_store: bool) -> bool:
        """Fetch the replica from another worker, or refuse it; return False to ask again later.

        Raises OSError if the own disk fails.
        """
        assert instruction.copy is not None
        others = [holder for holder in instruction.holders if holder != self._me]
        first = self._me[1] % max(1, len(others))  # so that workers ask different holders
        holders = others[first:] + others[:first]
        return await self._fetcher.fetch(instruction.copy, holders, to_store=to_store)

    # --- the inventory ----------------------------------------------------------------------------

    async def _recheck(self, digest: str) -> None:
        """Send the inventory again if this replica, which another worker asked for, is not intact."""
        with contextlib.suppress(RuntimeError):  # the agent ends
            if not await self._on_disk(self._replicas.verify, digest):
                await self._send_inventory(self._inventory.scope)

    async def _send_inventory(self, scope: str) -> None:
        """Send the current inventory for this scope."""
        replicas, is_idle = self._replicas, self._is_idle
        copies = await self._on_disk(functools.partial(replicas.replicas, stable=is_idle))
        installed = replicas.installed_digest if is_idle else None
        for refusal in replicas.refused.take_new():
            log.warning("%s", refusal)
            self._send(files_refused(refusal).to_message())
        port, problem, refused = self._server.port, replicas.problem, replicas.refused.digests
        inventory = FileInventory(
            scope, copies, installed, not is_idle, port, problem, tuple(refused)
        )
        self._send_message(inventory)

    def _send_message(self, inventory: FileInventory) -> None:
        self._inventory = inventory
        self._send({"type": "files", **encode(inventory)})

    async def _on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)
