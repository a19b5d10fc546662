"""Rendezvous services that follow a script, and their agents: no sockets, no time.

A service admits the expected workers as soon as all of them are there. It excludes a worker that is
lost or leaves at once. The test decides the rest of the training.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Collection
from typing import Any

from ddpjob_agent.membership.failures import fail_job
from ddpjob_operator.rendezvous.client import ServiceUnavailableError
from ddpjob_operator.request import Request
from ddpjob_protocol.codec import decode, encode
from ddpjob_protocol.keys.credentials import JobKey
from ddpjob_protocol.keys.signed_http import PROOF_HEADER, ForgedError, RequestVerifier, digest_of
from ddpjob_protocol.messages.agent import Failure
from ddpjob_protocol.messages.control import (
    Expectation,
    Policy,
    ProcessFailure,
    Report,
    ServiceState,
)
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.builders import make_round

OVER = (ServiceState.COMPLETE, ServiceState.FAILED)


class Service:
    """One start of one rendezvous service."""

    def __init__(
        self,
        term: int,
        key: JobKey,
        carried: Membership | None,
        *,
        boot: int = 1,
        pod: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`carried`: the membership that the agents report; `pod`: the UID of the service's pod."""
        self.pod = pod
        self._now = now
        self.expected: list[Expectation] = []  # all that it received
        self.key = key
        challenges = map(str, itertools.count(1))
        self._verifier = RequestVerifier(
            key.operator, lambda: f"{pod} {boot} {next(challenges)}".replace(" ", ".")
        )
        self.report = Report(
            version=1, term=term, boot=boot, state=ServiceState.WAITING, reason="waits", workers=()
        )
        self.report = dataclasses.replace(self.report, membership=carried)
        self.closed = False
        self._news = 1
        self._ended_polls = 0
        self._changed = asyncio.Event()

    @property
    def members(self) -> list[str]:
        """The workers that train together."""
        membership = self.report.membership
        return [member.worker for member in membership.members] if membership else []

    async def answer(self, request: Request) -> Any:
        """Answer like the real service, over HTTP."""
        query, body = request.query, request.body
        try:
            proof = self._verifier.verify(
                request.method, request.path, query.items(), request.headers[PROOF_HEADER]
            )
        except ForgedError as error:
            raise ServiceUnavailableError(f"403: {error}") from error
        assert proof.digest == digest_of(body)
        if not proof.is_fresh:
            return self._verifier.challenge(proof)
        match request.method, request.path:
            case "GET", "/report":
                after, only_news = int(query["after"]), query["news"] == "1"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(float(query["timeout"])):
                        ended = self._ended_polls
                        while not self._newer(after, only_news) and ended == self._ended_polls:
                            await self._changed.wait()
                if self.closed:
                    raise ServiceUnavailableError("the connection was closed")
                return self._verifier.seal(encode(self.report), proof)
            case "PUT", "/expected":
                assert body is not None
                self.expected.append(decode(Expectation, body))
                return self._verifier.seal({}, proof)
        raise AssertionError(f"the operator may not ask for {request.method} {request.path}")

    def tell(self, **changes: Any) -> None:
        """The report changes."""
        self.report = dataclasses.replace(self.report, **changes, version=self.report.version + 1)
        if changes.keys() - {"step", "total_steps", "metrics", "snapshot_step"}:
            self._news = self.report.version
        self._wake()

    def close(self) -> None:
        """End its container."""
        self.closed = True
        self._wake()

    def end_polls(self) -> None:
        """Answer all that wait for news, which a service may do at any time."""
        self._ended_polls += 1
        self._wake()

    def finish(self, failure: Failure | None = None) -> None:
        """The commands of all members have ended."""
        state, reason = ServiceState.COMPLETE, "all processes ended with 0"
        if failure is not None:
            policy = Policy()
            decision = fail_job(failure, policy.max_failures + 1, policy)
            assert decision is not None
            state, reason = ServiceState.FAILED, decision.reason
        self.tell(state=state, reason=reason, failure=failure)

    def fail_process(self, worker: str) -> None:
        """A process of this worker fails, and all start again in their pods."""
        seen = self.report.process_failures
        at = max([int(self._now()), *(each.at + 1 for each in seen)])
        self.tell(
            process_failures=(*seen, ProcessFailure(worker, at)), failures=self.report.failures + 1
        )

    def turn(self, running: Collection[str], leaving: Collection[str]) -> None:
        """Look at the workers again."""
        if tuple(sorted(running)) != self.report.workers:
            self.tell(workers=tuple(sorted(running)))
        if not self.expected or self.report.state in OVER:
            return
        told = self.expected[-1]
        wanted = [worker for worker in told.workers if worker not in told.draining]
        stay = [worker for worker in self.members if worker in running and worker in wanted]
        join = [w for w in wanted if w in running and w not in self.members]
        if len(stay) + len(join) < len(wanted):
            join = []  # the others will come
        away = set(self.members) - set(stay)
        workers = [*stay, *join]
        if workers and not away and not join:
            if self.report.state is not ServiceState.RUNNING:
                self.tell(state=ServiceState.RUNNING, reason="running")
        elif len(workers) < told.policy.minimum:
            if self.report.state is not ServiceState.WAITING:
                self.tell(state=ServiceState.WAITING, reason="too few workers are here")
        else:
            lost = away - set(running) - set(leaving)
            cause = Cause.LOST if lost else Cause.LEFT if away else Cause.JOINED
            self._form(workers, cause if self.members else Cause.STARTED)

    def _form(self, workers: list[str], cause: Cause) -> None:
        old = self.report.membership
        id_ = MembershipId(self.report.term, self.report.boot, old.id.round + 1 if old else 1)
        members = tuple(Member(worker, f"{worker}-agent", "10.0.0.1", 1) for worker in workers)
        losses = (old.losses if old else 0) + (cause is Cause.LOST)
        new = Membership(id_, members, cause, f"now {', '.join(workers)}", losses=losses)
        rounds = (*self.report.memberships, dataclasses.replace(make_round(new), since=self._now()))
        self.tell(
            state=ServiceState.RUNNING,
            reason="running",
            membership=new,
            memberships=rounds,
            losses=losses,
        )

    def _newer(self, after: int, only_news: bool) -> bool:
        if only_news and after <= self.report.version:
            return self.closed or self._news > after
        return self.closed or self.report.version != after

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
