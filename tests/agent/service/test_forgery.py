"""An attacker with the key of one worker tries each message on a real service.

The attacker has the keys of worker c, which the operator does not expect, or of the member b.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest

from agent.membership.views import failure
from agent.service.serving import PATIENCE_SECONDS, PATIENT, Job, hello_of, run
from ddpjob_agent.c10d.protocol import Op, Request, encode_request
from ddpjob_agent.net.framing import connect
from ddpjob_agent.net.parts import parts_of
from ddpjob_operator.rendezvous.client import (
    ServiceClient,
    ServiceUnavailableError,
    connect_directly,
)
from ddpjob_protocol.codec import encode
from ddpjob_protocol.keys.membership_seal import MembershipSeal
from ddpjob_protocol.messages.control import Expectation
from ddpjob_protocol.messages.membership import Cause, Member, Membership, MembershipId
from support.keys import PEERS, credential

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.service.serving import Agent
    from ddpjob_protocol.messages.agent import Message

NOW = "1.1.1"


def forged(*held: int, members: tuple[Member, ...]) -> Message:
    """Return a membership that no service has formed."""
    lie = Membership(MembershipId(*held), members, Cause.STARTED, "", failures=99)
    return dict(encode(lie))


async def tell(job: Job, worker: str, messages: list[Message], **facts: Any) -> None:
    """Register with the key of a worker, and send messages until the service has read them."""
    connection = await connect("127.0.0.1", job.service.port, credential(worker))
    connection.send({**hello_of(worker), **facts})
    for message in (*messages, {"type": "beat"}):
        connection.send(message)
    while (answer := await connection.receive()) is not None and answer["type"] != "beat":
        pass
    assert answer is not None, "the session lives"
    connection.close()


STEP = {"event": "step", "step": 10**6}
SAVED = {"event": "saved", "step": 10**6}
WRITE = next(parts_of(encode_request(Request(Op.SET, (b"key",), (b"forged",)))))
OF_NO_MEMBER: list[Message] = [
    {"type": "exited", "membership": NOW, "live": False, "failure": None},
    {"type": "exited", "membership": NOW, "live": True, "failure": encode(failure())},
    {"type": "exited", "membership": NOW, "failure": encode(failure(permanent=True))},
    {"type": "live"},
    {"type": "ready"},
    {"type": "finished"},
    {"type": "broken", "membership": NOW, "why": "it says so"},
    {"type": "asks", "membership": NOW, "rank": 0},
    {"type": "stops", "membership": NOW},
    {"type": "promise", "step": 1},
    {"type": "stopped", "membership": NOW},
    {"type": "steps_done", "membership": NOW, "step": 10**6},
    {"type": "report", "membership": NOW, "report": STEP},
    {"type": "report", "membership": NOW, "report": SAVED},
    {"type": "warning", "reason": "Odd", "message": "x", "membership": NOW},
    {"type": "store", "id": 1, "membership": NOW, **WRITE},
    {"type": "writes", "membership": NOW, "first": True, "writes": [], "version": 2**61},
    {"type": "forgot", "membership": NOW, "keys": []},
    {"type": "run", "id": "9.9.9"},
    {"type": "finish", "ok": True, "reason": ""},
    {"type": "expected", "workers": []},
    {"type": "bye"},
]


async def check_undisturbed(job: Job, a: Agent, b: Agent) -> None:
    """Check that a and b still train in their first membership."""
    assert await a.do(Op.GET, b"key") == await b.do(Op.GET, b"key")
    assert b"real" in await a.do(Op.GET, b"key")
    found = await job.report()
    assert [(each.id, each.workers) for each in found.memberships] == [(NOW, ("a", "b"))]
    assert (found.state.value, found.failure, found.failures) == ("Running", None, 0)
    assert (found.live, found.step, found.snapshot_step, found.repeated_steps) == (
        False,
        None,
        None,
        0,
    )
    assert (a.running, b.running) == (True, True)
    assert set(a.orders + b.orders) <= {"halt", "run"}


def test_a_worker_that_is_no_member_changes_nothing_for_the_members(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await a.do(Op.SET, b"key", values=(b"real",))
        await tell(job, "c", OF_NO_MEMBER)
        await tell(job, "c", [], live=True, ready=True, finished=True, done=True, stopped=NOW)
        await check_undisturbed(job, a, b)

    run(body, tmp_path)


PATIENT_FOR_MEMBERS = dataclasses.replace(PATIENT, reconnect_grace=PATIENCE_SECONDS)
LATER = {"of_a_later_round": (1, 1, 9), "of_a_later_boot": (1, 9, 1), "of_a_later_term": (9, 9, 9)}


@pytest.mark.parametrize("worker", ["b", "c"])
def test_a_worker_makes_no_membership(tmp_path: Path, worker: str) -> None:
    """Neither one that ends the service, nor one that it adopts, now or after its restart."""

    async def body(job: Job) -> None:
        await job.expect("a", "b", policy=PATIENT_FOR_MEMBERS)
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await a.do(Op.SET, b"key", values=(b"real",))
        assert a.membership is not None
        for agent in (a, b):
            await pause(agent)
        me = b.member if worker == "b" else Member("c", "c-first", "127.0.0.1", 1)
        grown = encode(dataclasses.replace(a.membership, id=MembershipId(1, 1, 2), failures=99))
        lies = [forged(*held, members=(me,)) for held in LATER.values()]
        for held in (*lies, grown, {"id": "9.9.9"}):
            for seal in ("", a.seal, MembershipSeal(credential(worker).key).of(a.membership), 7):
                facts = {"member": encode(me), "membership": held, "seal": seal, "running": True}
                await tell(job, worker, [], **facts)
                assert job.service.process.poll() is None
        await job.service.kill()
        job.service.start()
        await listening(job)
        await tell(job, worker, [], member=encode(me), membership=lies[1], running=True)
        await job.expect("a", "b", policy=PATIENT_FOR_MEMBERS)
        for agent in (a, b):
            agent.task = asyncio.ensure_future(agent.link.run())
        await job.formed(1)
        await check_undisturbed(job, a, b)

    run(body, tmp_path)


async def pause(agent: Agent) -> None:
    """End the connection of an agent, which neither learns nor reports anything until it returns."""
    agent.task.cancel()
    await asyncio.wait([agent.task])


async def listening(job: Job) -> None:
    """Wait until the service accepts connections."""
    while True:
        try:
            (await asyncio.open_connection("127.0.0.1", job.service.port))[1].close()
        except OSError:
            await asyncio.sleep(0.02)
        else:
            return


def test_no_key_of_a_worker_speaks_for_the_operator(tmp_path: Path) -> None:
    async def body(job: Job) -> None:
        await job.expect("a", "b")
        a, b = job.agent("a"), job.agent("b")
        await job.formed(1)
        await a.do(Op.SET, b"key", values=(b"real",))
        for key in (credential("b").key, PEERS.key, b"", os.urandom(32)):
            liar = ServiceClient(connect_directly("127.0.0.1", job.service.port), key)
            requests: list[Callable[[], Any]] = [
                liar.report,
                lambda liar=liar: liar.expect(Expectation(())),  # type: ignore[misc]
            ]
            for request in requests:
                with pytest.raises(ServiceUnavailableError):
                    await request()
        await check_undisturbed(job, a, b)

    run(body, tmp_path)
