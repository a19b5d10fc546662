"""Takes, renews and releases the Lease of the operator that leads.

May not: plan, or use the client whose writes it allows: a renewal must not wait for these.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from ddpjob_operator.controller.leases import election
from ddpjob_operator.controller.leases.election import Lease, Sighting
from ddpjob_operator.kube.interface import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    ApiServer,
    UnreachableError,
)
from ddpjob_operator.request import Request

log = logging.getLogger("ddpjob.leadership")


class LeaseLostError(UnreachableError):
    """The operator no longer holds the Lease for sure, and has to end."""


@dataclasses.dataclass(frozen=True)
class LeaseName:
    """The Lease that the operators of a cluster share."""

    namespace: str
    name: str

    @property
    def folder(self) -> str:
        """Path of all Leases of the namespace."""
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        """Path of this Lease."""
        return f"{self.folder}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Leadership:
    """One operator's part in the election."""

    def __init__(
        self,
        kube: ApiServer,
        lease: LeaseName,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` must be new in each process: a restarted operator is another candidate."""
        self._kube = kube
        self._name = lease
        self._identity = identity
        self._clock = clock
        self._seen: Sighting | None = None
        self._lease: Lease = {}  # as the last write of this operator left it
        self._renewed_at: float | None = None
        self.obstacle = ""  # why the last attempt failed, for people

    def is_sure(self) -> bool:
        """Return whether this operator surely holds the Lease now."""
        return election.is_sure(self._renewed_at, self._clock())

    def role(self) -> str:
        """Return this operator's part, for people."""
        if self._renewed_at is not None:
            return "leader" if self.is_sure() else f"the Lease {self._name} is lost"
        holder = self._seen.holder if self._seen else ""
        return f"standby: {holder or 'nobody'} leads by the Lease {self._name}"

    def is_lost(self) -> bool:
        """Return whether this operator led and does not hold the Lease for sure any more."""
        return self._renewed_at is not None and not self.is_sure()

    async def acquire(self) -> None:
        """Wait until this operator leads."""
        while not await self._attempt(self._try_to_take):  # noqa: ASYNC110 - asks the API server
            await asyncio.sleep(election.RENEW_SECONDS)
        log.info("leads by the Lease %s as %s", self._name, self._identity)

    async def keep(self) -> None:
        """Renew the Lease until that fails for too long; raise LeaseLostError then."""
        while self.is_sure():
            await asyncio.sleep(election.RENEW_SECONDS)
            await self._attempt(self._renew)
        raise LeaseLostError(
            f"the Lease {self._name} is lost: {self.obstacle or 'this process was paused'}. "
            "The operator ends, so that two never write at the same time. "
            "Its container starts again as a standby."
        )

    async def release(self) -> None:
        """Give the Lease up, so that another operator leads at once; log a failure."""
        lease, self._renewed_at = self._lease, None
        try:
            async with asyncio.timeout(election.ATTEMPT_SECONDS):
                await self._put(election.released(lease, datetime.now(UTC)))
        except (ApiError, UnreachableError, TimeoutError) as error:
            log.warning("cannot release the Lease %s: %s", self._name, error)
        else:
            log.info("released the Lease %s", self._name)

    # --- requests ---------------------------------------------------------------------------------

    async def _attempt(self, act: Callable[[], Awaitable[bool]]) -> bool:
        """Make one attempt within its limit; return whether it succeeded."""
        try:
            async with asyncio.timeout(election.ATTEMPT_SECONDS):
                held = await act()
        except TimeoutError:
            self._failed(f"no answer within {election.ATTEMPT_SECONDS:g} s")
        except (ApiError, UnreachableError) as error:
            if not (isinstance(error, ApiError) and error.status == CONFLICT):
                self._failed(str(error))
        else:
            self.obstacle = ""
            return held
        return False

    def _failed(self, obstacle: str) -> None:
        if obstacle != self.obstacle:
            log.warning("the Lease %s: %s", self._name, obstacle)
        self.obstacle = obstacle

    async def _try_to_take(self) -> bool:
        found = await self._read()
        sent_at = self._clock()
        if found is None:
            lease = election.new_lease(
                self._name.namespace, self._name.name, self._identity, datetime.now(UTC)
            )
            self._lease = await self._kube.send(Request("POST", self._name.folder, body=lease))
        else:
            self._seen = election.see(found, self._seen, sent_at)
            if not election.may_take(self._seen, self._identity, sent_at):
                return False
            await self._put(election.taken(found, self._identity, datetime.now(UTC)))
        self._renewed_at = sent_at
        return True

    async def _renew(self) -> bool:
        """Renew the Lease; after a lost answer or a change by others, read it first."""
        sent_at = self._clock()
        try:
            await self._put(election.renewed(self._lease, datetime.now(UTC)))
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            await self._read_again()
            return False
        self._renewed_at = sent_at
        return True

    async def _read_again(self) -> None:
        """Read a Lease that has changed; if this operator does not hold it, it has lost it."""
        found = await self._read()
        holder = found["spec"].get("holderIdentity") if found else None
        if found is not None and holder == self._identity:
            self._lease = found
            return
        self._renewed_at = float("-inf")
        raise UnreachableError(f"{holder or 'nobody'} holds it")

    async def _read(self) -> Lease | None:
        try:
            found: Lease = await self._kube.send(Request("GET", self._name.path))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    async def _put(self, lease: Lease) -> None:
        self._lease = await self._kube.send(Request("PUT", self._name.path, body=lease))
